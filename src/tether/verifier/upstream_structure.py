"""Step 4 of the ``upstream`` mode: an answer as a tuple or interval, its elements compared by what they look like."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .prm800k import is_integer, without_thousands

BRACKETS = "()[]"
FRACTION = re.compile(r"^-?[0-9]+.?/0*[1-9][0-9]*.?$")


@dataclass(frozen=True, slots=True)
class Compared:
    """What a step says of two texts, and which step that was."""

    is_equal: bool | None
    """``None``: one of them could not be read."""
    by: str


def compare_by_structure(reference: str, answer: str, symbolic: Callable[[str, str], Compared]) -> Compared:
    """Compare two normalised texts element by element.

    Where the reference is a tuple or interval both must have the same brackets, and always as many elements. Two
    literal fractions are equal only as written; an integer is never equal to what is none; all else is asked of
    ``symbolic``. The first element that is not equal decides.

    >>> same = lambda a, b: Compared(True, "sympy")
    >>> compare_by_structure("1/2", "2/4", same), compare_by_structure("3", "x", same).is_equal
    (Compared(is_equal=False, by='fraction'), False)
    >>> compare_by_structure("(1,x)", "(1,y)", same), compare_by_structure("[1,2]", "(1,2)", same).by
    (Compared(is_equal=True, by='sympy'), 'brackets')
    """
    wanted, got = elements(reference), elements(answer)
    if len(wanted) > 1 and (reference[0] != answer[0] or reference[-1] != answer[-1]):
        return Compared(False, "brackets")
    if len(wanted) != len(got):
        return Compared(False, "length")
    said = Compared(False, "length")
    for one, other in zip(wanted, got, strict=True):
        if FRACTION.search(one) and FRACTION.search(other):
            said = Compared(one == other, "fraction")
        elif is_integer(one) != is_integer(other):
            said = Compared(False, "integer")
        else:
            said = symbolic(one, other)
        if not said.is_equal:
            break
    return said


def elements(text: str) -> list[str]:
    """The elements of a tuple or interval without brackets inside; a text that is none is its own only element."""
    text = without_thousands(text)
    if not text:
        return []
    inside = text[1:-1]
    if len(text) > 2 and text[0] in BRACKETS and text[-1] in BRACKETS and not any(sign in inside for sign in BRACKETS):
        return [element.strip() for element in inside.split(",")]
    return [text]
