"""One if the last number in an answer is the right one, else zero."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from tether.errors import DataError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS

_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9)])[-\u2212])?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.(?P<rest>[0-9]+))?"
)
"""Digits 0 to 9, with commas between groups of three, a fraction, and a minus sign that is not a subtraction's."""


@REWARDS.register("number")
@dataclass(frozen=True)
class Number:
    """``1`` if the last number in the response has the value of the reference; else ``0``.

    A number is a run of the digits 0 to 9, whatever stands around it. A minus sign directly before it belongs to it,
    unless a digit or a closing bracket stands directly before the sign: ``8-3`` ends in 3. Commas between groups of
    three digits and a decimal part are read, leading zeros and zeros at the end of a decimal part do not count. Words
    such as ``twelve`` are not numbers. Only the last number counts, so trying several is no use. The response comes
    without its end-of-sequence token; a completion that never ended is not asked about.

    >>> prompt = Prompt(id="sums/train/0/0", text="What is 7 + 5?", token_ids=(6,), reference="12")
    >>> [Number()(prompt, Answer(text)).value for text in ("7 + 5 = 12.", "12, since 7 + 5", "twelve")]
    [1.0, 0.0, 0.0]
    """

    needs_end: ClassVar[bool] = True
    """A completion that was cut is wrong, whatever it says so far: its last number may have been cut, too."""

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """1.0 or 0.0, with the number that was compared."""
        right = last_number(prompt.reference)
        if right is None:
            raise DataError(f"the reward 'number' compares numbers; the reference {prompt.reference!r} has none")
        found = last_number(answer.text)
        return Grade(value=float(found == right), extracted=found)


def last_number(text: str) -> str | None:
    """The last number in a text, written in the shortest way; None where there is none.

    >>> [last_number(text) for text in ("7 + 5 = 12.", "8-3", "it is -3", "1,234.50", "007", "-0", "none")]
    ['12', '3', '-3', '1234.5', '7', '0', None]
    """
    found = None
    for found in _NUMBER.finditer(text):  # noqa: B007 - the last one is wanted
        pass
    if found is None:
        return None
    whole = found["whole"].replace(",", "").lstrip("0") or "0"
    rest = (found["rest"] or "").rstrip("0")
    value = f"{whole}.{rest}" if rest else whole
    return f"-{value}" if found["sign"] and value != "0" else value
