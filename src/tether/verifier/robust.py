r"""The mode ``robust``: whether an answer is mathematically what the reference says.

A cascade: identical, same signs, plain number, shape (tuple, set, interval, list, matrix, equation) part by part,
values, and math-verify for sums, integrals and limits. Nothing is cut to what can be read: a text is read as a whole
or counts as text. No limits of time here: who calls holds the clock.
"""

from __future__ import annotations

import re

from tether.verifier import library
from tether.verifier.expressions import TooLarge
from tether.verifier.extraction import Extracted, bare_reference, extract
from tether.verifier.gate import MOST_CHARACTERS, too_large
from tether.verifier.matching import Matcher
from tether.verifier.policies import Policies
from tether.verifier.spelling import plain, spell
from tether.verifier.structure import Words, as_number, understand
from tether.verifier.verdict import Status, Verdict

LETTER = re.compile(r"\(?\s*(?:\\(?:text|mathrm|textbf|mathbf)\s*\{\s*)?\(?([A-J])\)?\s*\}?\s*\)?")
CHOSEN = re.compile(
    r"(?i:option |choice )?\(?\s*(?:\\(?:text|mathrm|textbf|mathbf)\s*\{\s*)?\(?([A-Ja-j])(?:\)|\b)\s*\}?\s*\)?"
    r"(?P<rest>(?:\)|[.:](?![A-Za-z])).*)?",
    re.DOTALL,
)
OTHER_CHOICE = re.compile(r"(?<![A-Za-z])[A-J](?![A-Za-z])|(?:^|[\s,;])\(?[a-j]\)|^[\W_]*[a-j]\W*$")
"""A second letter behind the first: a capital, one with its bracket, or one that is all there is."""
LIST_OF_THOUSANDS = re.compile(r"(?<=\d),\s+(?=\d{3}(?!\d))")
EULER_OR_TEN = re.compile(r"(?<![\d.])([2-9])e([+-]\d)(?![\d.])")
STAGES = ("library", "structure", "symbolic", "number", "text")


def judge_robust(answer: str, reference: str, policies: Policies | None = None) -> Verdict:
    r"""What a response is worth against a bare reference. Raises for what is no text, and for nothing else.

    >>> judge_robust(r"So it is \boxed{\frac{2}{4}}.", "0.5")
    Verdict(status='correct', extracted='\\frac{2}{4}', stage='boxed:number', policy='')
    >>> judge_robust(r"$\frac{1}{2006!}$", r"\frac{1}{2004!}").status
    'wrong'
    >>> judge_robust(r"\boxed{2,1}", "1,2").policy
    'order'
    """
    for name, value in (("answer", answer), ("reference", reference)):
        if not isinstance(value, str):
            raise TypeError(f"{name} is text, not {type(value).__name__}; write {value!r} as a str")
    policies = policies or Policies()
    found = extract(answer, policies)
    if answer.strip() == reference.strip():
        return _verdict("correct", found, "identical", text=found.text or answer.strip())
    if found.text is None:
        return Verdict(status="no_answer", extracted=None, stage="")
    return _judge(found, bare_reference(reference), found.text, policies)


def _judge(found: Extracted, gold: str, other: str, policies: Policies) -> Verdict:
    """The cascade, for the two texts without their wrappers."""
    if gold == other:
        return _verdict("correct", found, "text")
    if not gold:
        return _verdict("wrong", found, "text")
    if max(len(gold), len(other)) > MOST_CHARACTERS:
        return _verdict("too_large", found, "gate")
    spelled = spell(gold), spell(other)
    numbers = as_number(spelled[0]), as_number(spelled[1])
    if None not in numbers and numbers[0] == numbers[1]:
        return _verdict("correct", found, "number")
    if plain(spelled[0]) == plain(spelled[1]) != "":
        return _verdict("correct", found, "text")
    if None not in numbers and policies.rounding == "exact":
        return _verdict("wrong", found, "number")
    if (letter := LETTER.fullmatch(spelled[0])) is not None:
        return _letters(found, letter[1], spelled[1], policies)
    if too_large(gold) or too_large(other):
        return _verdict("too_large", found, "gate")
    return _compared(found, gold, other, policies)


def _compared(found: Extracted, gold: str, other: str, policies: Policies) -> Verdict:
    """By shape and value, in each of the readings that the texts have."""
    first: Verdict | None = None
    for a, b, policy in _readings(gold, other, policies):
        matcher = Matcher(policies)
        x, y = understand(a), understand(b)
        status: Status = "wrong"
        try:
            is_right = matcher.matches(x, y)
            if not is_right and any(isinstance(part, Words) and part.for_library for part in (x, y)):
                matcher.seen.add("library")
                is_right = library.agrees(spell(a), spell(b))
        except TooLarge:
            return _verdict("too_large", found, "value")
        except RecursionError:
            return _verdict("parse_error", found, "structure")
        stage = next((name for name in STAGES if name in matcher.seen), "structure")
        if is_right:
            return _verdict("correct", found, stage, policy or matcher.policy)
        if isinstance(y, Words) and y.is_malformed and not (isinstance(x, Words) and not x.is_malformed):
            status, stage = "parse_error", "text"
        first = first or _verdict(status, found, stage, matcher.policy)
    assert first is not None
    return first


def _readings(gold: str, other: str, policies: Policies) -> list[tuple[str, str, str]]:
    """The two texts, and their other readings: a list that may be one number; ``2e-3`` with Euler's number."""
    found = [(gold, other, "")]
    if policies.thousands == "loose":
        joined = LIST_OF_THOUSANDS.sub(",", gold), LIST_OF_THOUSANDS.sub(",", other)
        if joined != (gold, other):
            found.append((*joined, "thousands"))
    for a, b in ((EULER_OR_TEN.sub(r"\1 e\2", gold), other), (gold, EULER_OR_TEN.sub(r"\1 e\2", other))):
        if (a, b) != (gold, other):
            found.append((a, b, ""))
    return found


def _letters(found: Extracted, letter: str, other: str, policies: Policies) -> Verdict:
    """Against the letter of a choice."""
    same = LETTER.fullmatch(other)
    if same is not None and same[1] == letter and policies.choice_letters == "loose":
        return _verdict("correct", found, "text", "choice_letters")
    chosen = CHOSEN.fullmatch(other)
    is_one = chosen is not None and not OTHER_CHOICE.search(chosen["rest"] or "")
    is_right = is_one and chosen is not None and chosen[1].upper() == letter and policies.choice_letters == "loose"
    return _verdict("correct" if is_right else "wrong", found, "text", "choice_letters" if chosen else "")


def _verdict(status: Status, found: Extracted, stage: str, policy: str = "", text: str | None = None) -> Verdict:
    return Verdict(
        status=status, extracted=text or found.text, stage=f"{found.place}:{stage}", policy=policy or found.policy
    )
