r"""The ``strict-int`` mode: the answer is one integer from 0 to 999, as AIME asks, and nothing else."""

from __future__ import annotations

import re

from .hendrycks import hendrycks
from .upstream_extraction import extract
from .verdict import Status, Verdict

LARGEST = 999
LONGEST = 100
"""Letters of an answer with unit markup; in a longer one none is looked for."""
INTEGER = re.compile(r"[+-]?[0-9]+")
UNIT = re.compile(r"(?:\\[,;:]|\\(?=\\)|~)*(?:\^?\{?\\circ\}?|°|%|\\(?:text|textrm|textbf|mathrm|mbox)\{[^{}]*\})$")
"""Unit markup behind a number, with the space before it; of an escaped space only the backslash is left here."""
WRAPPED = re.compile(r"\\(?:textbf|textrm|mathbf|mathrm|mbox)\{([^{}]*)\}")


def judge_strict_int(answer: str, reference: str) -> Verdict:
    r"""Whether a response ends in this integer.

    Found and spelled as in the ``upstream`` mode (extraction and Hendrycks' normalisation), then without ``$`` and unit
    markup, it must be one integer from 0 to 999; leading zeros do not count. No later step of ``upstream`` is taken: no
    rounding, no factor of 100. An open box is wrong: a truncated answer is not an answer.

    >>> judge_strict_int(r"so \boxed{025}", "25")
    Verdict(status='correct', extracted='025', stage='boxed:integer', policy='')
    >>> judge_strict_int(r"so \boxed{2}", "200").status, judge_strict_int(r"\boxed{25", "25").stage
    ('wrong', 'whole:not-an-integer')
    >>> judge_strict_int(r"\boxed{1/2}", "1/2")
    Verdict(status='parse_error', extracted='1/2', stage='reference:not-an-integer', policy='')
    """
    found = extract(answer)

    def verdict(status: Status, stage: str) -> Verdict:
        return Verdict(status=status, extracted=found.text if found.text.strip() else None, stage=stage)

    wanted = integer(reference)
    if wanted is None:
        return verdict("parse_error", "reference:not-an-integer")
    if not found.text.strip():
        return verdict("no_answer", "")
    got = integer(found.text)
    if got is None:
        return verdict("wrong", f"{found.place}:not-an-integer")
    if not in_range(got):
        return verdict("wrong", f"{found.place}:out-of-range")
    if not in_range(wanted):
        return verdict("wrong", "reference:out-of-range")
    return verdict("correct" if got == wanted else "wrong", f"{found.place}:integer")


def integer(text: str) -> str | None:
    """The digits of the one integer that this text is, without leading zeros but with a minus sign; none where it is
    anything else. Digits, for a number of a million digits is out of range long before it is a number."""
    bare = hendrycks(text).replace("$", "")
    bare = UNIT.sub("", bare) if len(bare) <= LONGEST else bare
    if wrapped := WRAPPED.fullmatch(bare):
        bare = wrapped.group(1)
    if not INTEGER.fullmatch(bare):
        return None
    digits = bare.lstrip("+-").lstrip("0") or "0"
    return "-" + digits if bare[0] == "-" and digits != "0" else digits


def in_range(digits: str) -> bool:
    """Whether these digits are an integer that AIME may ask for."""
    return len(digits) <= len(str(LARGEST)) and digits[0] != "-"
