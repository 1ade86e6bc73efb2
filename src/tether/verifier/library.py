# ruff: noqa: SIM905  (a list of words reads better as words)
"""The last stage: math-verify reads what the house does not (sums, integrals, limits), with its faults kept out."""

from __future__ import annotations

import logging
import re
from typing import Any

KNOWN = frozenset(  # what is shown to it
    "int sum prod lim frac sqrt binom cdot times div pi infty to le leq ge geq sin cos tan cot sec csc arcsin arccos "
    "arctan sinh cosh tanh ln log exp alpha beta gamma theta lambda mu sigma phi omega rightarrow pm mathrm".split()
)
COMMAND = re.compile(r"\\([A-Za-z]+)")
WORD = re.compile(r"(?<!\\)(?<![A-Za-z\\])[A-Za-z]{3,}")
LONGEST = 400
DIGITS = 120


def agrees(gold: str, other: str) -> bool:
    r"""Whether math-verify finds them equal, given that it has read both as a whole.

    It runs as long as it likes, in whatever thread: who calls holds the clock. It cuts what it cannot read and
    compares numbers to an absolute 1e-6, so only texts of signs that it knows are shown to it, and what it finds equal
    is compared again, relative to its size.

    >>> agrees(r"\sum_{k=1}^{4} k", "10"), agrees(r"\sum_{k=1}^{4} k", "10 apples")
    (True, False)
    """
    if not (_is_known(gold) and _is_known(other)):
        return False
    a, b = _parsed(gold), _parsed(other)
    if a is None or b is None:
        return False
    from math_verify import verify

    return bool(verify([a], [b], timeout_seconds=None)) and _is_close(a, b)


def _is_known(text: str) -> bool:
    bare = COMMAND.sub(" ", text)
    is_balanced = all(bare.count(left) == bare.count(right) for left, right in ("{}", "()", "[]"))
    return (
        is_balanced
        and len(text) <= LONGEST
        and set(COMMAND.findall(text)) <= KNOWN
        and not WORD.search(bare)
        and not re.search(r"[^\sA-Za-z0-9+\-*/^_=(){}\[\].|!]", bare)
        and not re.search(r"\d\s+\d|[-+*/^_=.]\s*$|(?<!_)\d_", bare)
    )


def _parsed(text: str) -> Any:
    from math_verify import LatexExtractionConfig, parse
    from sympy import Basic

    if re.search(r"\\(?:sum|prod)\s*_\s*\{\s*i\s*=", text):
        # an index i, which the library would take for the imaginary unit
        free = next((letter for letter in "kmjpquvw" if letter not in COMMAND.sub(" ", text)), "i")
        text = re.sub(r"(?<![A-Za-z\\])i(?![A-Za-z])", free, text)
    logging.getLogger("math_verify").addHandler(logging.NullHandler())
    found = parse(rf"\boxed{{{text}}}", [LatexExtractionConfig()], "no_fallback", parsing_timeout=None)
    return found[0] if len(found) == 1 and isinstance(found[0], Basic) else None


def _is_close(a: Any, b: Any) -> bool:
    """Equal to 80 digits of their size: numbers as they are, others with integers for their letters."""
    from sympy import Rational

    letters = sorted(a.free_symbols | b.free_symbols, key=str)
    for start in (5, 8, 13) if letters else (0,):
        point = {letter: start + n for n, letter in enumerate(letters)}
        try:
            x, y = a.subs(point).doit(), b.subs(point).doit()
            if x.is_Rational and y.is_Rational:
                if x != y:
                    return False
                continue
            x, y = x.evalf(DIGITS), y.evalf(DIGITS)
            if not abs(x - y) <= max(abs(x), abs(y)) * Rational(1, 10**80):
                return False
        except (TypeError, ValueError, ArithmeticError, AttributeError):
            return False
    return True
