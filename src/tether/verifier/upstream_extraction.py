"""Where the ``upstream`` mode looks for the final answer: phrases around it, the last box, and what follows them.

Step 1 of six. Each of its parts acts on what the one before it left. Where none finds anything, the whole response is
the answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Place = Literal["whole", "phrase", "answer", "is-answer", "boxed"]
"""What pointed at the answer: nothing; a last "is ", "=", ...; "the answer is X"; "X is the answer"; a box."""

BEFORE = ("answer:", "answer is", "answers are")
AFTER = ("is answer", "is the answer", "are answers", "are the answers")
BRACE = re.compile(r"[{}]")
LEAD_INS = ("be ", "is ", "are ", "=", ": ", "get ", "be\n", "is\n", "are\n", ":\n", "get\n")


@dataclass(frozen=True, slots=True)
class Found:
    """What is graded, and what pointed at it."""

    text: str
    place: Place


def extract(response: str) -> Found:
    r"""The final answer of a response, as the prime_math score finds it.

    >>> extract(r"so \boxed{3} and \boxed{x = \frac{1}{2}}")
    Found(text='\\frac{1}{2}', place='boxed')
    >>> extract("The answer is 12. Next we check 13.")
    Found(text='12', place='answer')
    >>> extract("I think 204")
    Found(text='I think 204', place='whole')
    """
    text = response
    place: Place = "whole"
    for marker in BEFORE:
        if (at := last_index(text, marker)) >= 0:
            text, place = text[at + len(marker) :].strip(), "answer"
    for marker in AFTER:
        if (at := last_index(text, marker)) >= 0:
            text, place = text[:at].strip(), "is-answer"
    if content := last_box(text):
        text, place = content, "boxed"
    if (at := text.rfind(". ")) >= 0:
        text = text[:at].strip()
    for marker in LEAD_INS:
        if (at := last_index(text, marker)) >= 0:
            text = text[at + len(marker) :].strip()
            place = "phrase" if place == "whole" else place
    return Found(text, place)


def last_index(text: str, marker: str) -> int:
    """Where the marker stands last, in any case of letters; -1 where it does not.

    Found in the lowered text, cut in the text itself, as upstream does: a letter whose lower case is longer (İ) moves
    the cut.
    """
    return text.lower().rfind(marker)


def last_box(text: str) -> str | None:
    r"""The content of the last ``\boxed{...}``, or else of the last ``\fbox{...}``; none where its braces are open.

    >>> last_box(r"\boxed{1} \boxed{\frac{1}{2}}")
    '\\frac{1}{2}'
    >>> last_box(r"\boxed{1} \boxed{2") is None
    True
    """
    at = text.rfind("\\boxed")
    at = at if at >= 0 else text.rfind("\\fbox")
    if at < 0:
        return None
    depth, start = 0, None
    for brace in BRACE.finditer(text, at):
        depth += 1 if brace[0] == "{" else -1
        if start is None and brace[0] == "{":
            start = brace.end()
        if depth == 0 and brace[0] == "}":
            return text[start : brace.start()].strip()
    return None
