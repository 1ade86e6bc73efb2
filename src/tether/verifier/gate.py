"""Whether the value of a mathematical text would be too large to compute, told from its looks in linear time.

A gate, not a parser: it reads LaTeX and plain text alike, skips what it does not know, never builds a large number and
never raises. What it lets through by mistake meets the limits of a worker; what it stops by mistake is not graded, so
its lines lie far above any answer that people write down.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from typing import Final

from tether.verifier.sizes import (
    LETTER,
    ONE,
    Size,
    TooLargeError,
    added,
    chosen,
    factorial,
    multiplied,
    raised,
    written,
)

MOST_CHARACTERS: Final = 20_000
"""Of a text."""
MOST_SUMMANDS: Final = 5e3
"""Of a sum or product, all those nested in it together."""
WIDEST: Final = 1e6
"""Range of an integral."""
DEEPEST: Final = 40
"""Brackets and powers in one another."""
MOST_NESTED: Final = 9
"""Functions in one another: a root counts one, any other two."""

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?"
_TOKEN = re.compile(rf"(?P<number>{_NUMBER})|(?P<word>\\?[A-Za-z]+)|\\\\|\\[{{}}]|\*\*|!+|\S")
_HARMLESS = re.compile(r"[-+0-9\s.,/$%=<>:()]{0,200}")
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SPELLED = str.maketrans(
    {
        "\u00d7": "*",
        "·": "*",
        "⋅": "*",
        "÷": "/",
        "\u2212": "-",
        "√": "\\sqrt ",
        "∑": "\\sum ",
        "Σ": "\\sum ",
        "∏": "\\prod ",
    }
    | {"∫": "\\int ", "π": "\\pi ", "Γ": "\\Gamma ", "ζ": "\\zeta "}
)
_THIN = re.compile(r"\\[,!;:> ]|\{,\}|~")  # what TeX writes between groups of digits


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_OPEN = {"{": "}", "(": ")", "[": "]", "\\{": "\\}"}
_CLOSE = frozenset(_OPEN.values())
_APART = _words(
    ", ; = < > & \\\\ \\le \\leq \\leqslant \\lt \\ge \\geq \\geqslant \\gt \\ne \\neq \\in \\cup \\cap \\to \\equiv "
    "\\approx \\sim \\quad \\qquad \\and \\or \\mid or and"
)
_TIMES = _words("* \\cdot \\times \\ast")
_OVER = _words("/ \\div \\over")
_GREEK = _words(
    "alpha beta gamma delta epsilon varepsilon eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi "
    "varphi chi psi omega Delta Theta Lambda Xi Sigma Phi Psi Omega infty ldots dots cdots circ degree prime ell"
)
_BOUNDED = _words("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh arg")
_LOGS = _words("log ln lg")
_FACTORIALS = _words("Gamma factorial")
_SLOW = _words("zeta bernoulli fibonacci harmonic")
_FUNCTIONS = _BOUNDED | _LOGS | _SLOW | _FACTORIALS | {"exp"}
_SUMS = _words("sum prod int iint iiint oint bigcup bigcap")
_CONSTANTS = {"e": math.e, "pi": math.pi}
_PAIRS = _words("frac dfrac tfrac cfrac binom dbinom tbinom binomial")


_SIGNS = ("+", "-", "\\pm", "\\mp")


def too_large(text: str) -> bool:
    """Whether nobody should try to compute what stands there.

    Stopped are values of more than ``sizes.MOST_DIGITS`` digits (estimated by logarithms), powers of more than
    ``MOST_DEGREE`` with letters, sums and products over more than ``MOST_SUMMANDS``, numbers written with more than
    ``MOST_DIGITS_WRITTEN`` digits, functions nested too deep, and texts longer than ``MOST_CHARACTERS``.

    >>> [too_large(text) for text in ("10^{10^{10}}", "100000000!", r"\\sum_{k=1}^{10^9}\\frac1k", "1e999999999")]
    [True, True, True, True]
    >>> [too_large(text) for text in ("2004!", "3^{2016}", "2^{2^{10}}", r"\\binom{2016}{1008}", r"\\frac{x^{99}}{2}")]
    [False, False, False, False, False]
    """
    if len(text) > MOST_CHARACTERS:
        return True
    if _HARMLESS.fullmatch(text):
        return False
    if not text.isascii():
        text = _RAISED.sub(lambda found: f"^{{{found[0].translate(_LOWERED)}}}", text).translate(_SPELLED)
        text = unicodedata.normalize("NFKC", text)
        if len(text) > MOST_CHARACTERS:
            return True
    try:
        _Reader(_THIN.sub("", text)).read()
    except (TooLargeError, RecursionError):  # the latter where the caller is deep down itself
        return True
    return False


class _Reader:
    """Goes once through the tokens of a text; what it does not understand it skips."""

    def __init__(self, text: str) -> None:
        self._tokens = [found[0] for found in _TOKEN.finditer(text)]
        self._next, self._depth, self._nested, self._summands = 0, 0, 0, 1.0

    def read(self) -> None:
        """All of it, or until something is too large."""
        while self._next < len(self._tokens):
            self._parts()  # up to a bracket that closes nothing

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        self._next += 1
        return self._tokens[self._next - 1]

    def _sum(self) -> Size:
        total: Size | None = None
        while True:
            term = self._signed(self._product)
            total = term if total is None else added(total, term)
            if self._peek() not in _SIGNS:
                return total

    def _signed(self, read: Callable[[], Size]) -> Size:
        sign = 1.0
        while self._peek() in _SIGNS:
            sign = -sign if self._take() == "-" else sign
        size = read()
        return size._replace(value=sign * size.value)

    def _product(self) -> Size:
        product, is_over = ONE, False
        while (token := self._peek()) and token not in _CLOSE and token not in _APART and token not in _SIGNS:
            if token in _TIMES or token in _OVER:
                is_over = token in _OVER
                self._next += 1
            elif token == "\\choose":
                self._next += 1
                return chosen(product, self._deeper(self._product))
            else:
                product, is_over = multiplied(product, self._power(), is_over), False
        return product

    def _power(self) -> Size:
        """A thing with what is written after it: powers, indices, factorials."""
        base = self._atom()
        while token := self._peek():
            if token in ("^", "**"):
                self._next += 1
                base = raised(base, self._exponent())
            elif token == "_":
                self._next += 1
                self._index()
            elif token[0] == "!":
                self._next += 1
                base = factorial(base, len(token))
            else:
                break
        return base

    def _power_of_next(self) -> Size:
        return self._deeper(self._power) if self._is_thing() else ONE

    def _exponent(self) -> Size:
        """What stands behind a sign for powers, in braces or not; a tower is read from its top."""
        return self._signed(self._tower)

    def _index(self) -> Size:
        return self._signed(self._whole_argument)

    def _whole_argument(self) -> Size:
        return self._deeper(self._atom) if self._is_thing() else ONE

    def _tower(self) -> Size:
        if not self._is_thing():
            return ONE
        is_group = self._peek() == "{"
        size = self._deeper(self._atom)
        if self._peek()[:1] == "!" and not is_group:
            size = factorial(size, len(self._take()))
        if self._peek() in ("^", "**"):
            self._next += 1
            size = raised(size, self._deeper(self._exponent))
        return size

    def _deeper(self, read: Callable[[], Size]) -> Size:
        self._depth += 1
        if self._depth > DEEPEST:
            raise TooLargeError
        size = read()
        self._depth -= 1
        return size

    def _within(self, read: Callable[[], Size], weight: int) -> Size:
        """Inside a function."""
        self._nested += weight
        if self._nested > MOST_NESTED:
            raise TooLargeError
        size = read()
        self._nested -= weight
        return size

    def _atom(self) -> Size:
        while True:
            token = self._take()
            if token in _OPEN:
                return self._deeper(self._group)
            if token[0].isdigit() or (token[0] == "." and len(token) > 1):
                return written(token)
            known = self._named(token)
            if known is not None:
                return known
            if not self._is_thing():
                return ONE  # a command or sign without a value of its own, such as \left

    def _named(self, token: str) -> Size | None:
        name = token.lstrip("\\")
        if name in _PAIRS:
            return self._pair(name)
        if name == "sqrt":
            return self._root()
        if name in _SUMS and token[0] == "\\":
            return self._ranged(name)
        if name in _FUNCTIONS:
            return self._function(name)
        if name == "underbrace":
            return self._repeated()
        if token == "\\uparrow" and self._peek() == token:
            raise TooLargeError
        if name in _CONSTANTS:
            return Size(_CONSTANTS[name], 0.5)
        return LETTER if name in _GREEK or (token[0] != "\\" and token[0].isalpha()) else None

    def _is_thing(self) -> bool:
        token = self._peek()
        return bool(token) and token not in _CLOSE and token not in _APART and token[0] not in "+-*/^_!"

    def _group(self) -> Size:
        return self._parts()[-1]

    def _parts(self) -> list[Size]:
        """What stands between brackets, the first of which was taken; of an equation each side."""
        parts = [self._sum()]
        while (token := self._peek()) and token not in _CLOSE:
            self._next += token in _APART
            parts.append(self._sum())
        self._next += 1
        return parts

    def _argument(self) -> Size:
        """One digit, command or group, as TeX takes it."""
        token = self._peek()
        if token[:1].isdigit() and len(token) > 1:
            self._tokens[self._next] = token[1:]
            return written(token[0])
        return self._whole_argument()

    def _pair(self, name: str) -> Size:
        if self._peek() == "(" and name == "binomial":
            self._next += 1
            parts = self._parts()
            return chosen(parts[0], parts[-1])
        above, below = self._argument(), self._argument()
        return multiplied(above, below, True) if name.endswith("frac") else chosen(above, below)

    def _root(self) -> Size:
        index = Size(2.0)
        if self._peek() == "[":
            self._next += 1
            index = self._deeper(self._group)
        size = self._within(self._argument, 1)
        return size._replace(value=math.sqrt(abs(size.value)) if abs(index.value) <= 2 else abs(size.value), terms=1)

    def _ranged(self, name: str) -> Size:
        """A sum's limits; what is summed comes next."""
        ends = {"_": 0.0, "^": 0.0}
        while self._peek() in ends or self._peek() == "\\limits":
            if (token := self._take()) in ends:
                ends[token] = self._index().value
        width = abs(ends["^"] - ends["_"])
        if name.endswith("int"):
            if not width <= WIDEST:
                raise TooLargeError
            return LETTER
        self._summands *= max(width, 1.0)
        if not self._summands <= MOST_SUMMANDS:
            raise TooLargeError
        return LETTER

    def _function(self, name: str) -> Size:
        power = ONE
        while self._peek() in ("_", "^"):
            is_power = self._take() == "^"
            size = self._within(self._index, 2)
            power = size if is_power else power
        return raised(_applied(name, self._within(self._power_of_next, 2)), power)

    def _repeated(self) -> Size:
        size = self._argument()
        if self._peek() == "_":
            self._next += 1
            if not abs(self._index().value) <= MOST_SUMMANDS:
                raise TooLargeError
        return size


def _applied(name: str, size: Size) -> Size:
    if name == "exp":
        return raised(Size(math.e, 0.5), size)
    if name in _FACTORIALS:
        return factorial(size, 1)
    if name in _SLOW and not abs(size.value) <= MOST_SUMMANDS:
        raise TooLargeError
    value = size.digits * math.log(10) + 1 if name in _LOGS else 1.0
    return Size(value, size.digits, min(size.degree, 1.0))
