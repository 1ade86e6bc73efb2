"""A small language of arithmetic, read into a tree: what the ``upstream`` mode reads where the original calls ``eval``.

Numbers, names, ``+ - * / **``, parentheses, factorials, calls of one argument, and products without a sign (``2x``).
Everything else - comparisons, strings, attributes, lists, keywords - is refused, so no text of a model is ever run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

LONGEST = 1000
"""Letters of an expression; a longer one is not read."""
DEEPEST = 40
"""Parentheses inside parentheses."""
EXPONENT = r"[eE][+-]?[0-9]+"
FLOAT = rf"(?:[0-9][0-9_]*\.[0-9]*|\.[0-9]+)(?:{EXPONENT})?|[0-9][0-9_]*{EXPONENT}"
INTEGER = "0[0_]*|[1-9][0-9_]*"
"""As Python writes it: 025 are two numbers."""
TOKEN = re.compile(
    rf"\s*(?:(?P<number>(?:{FLOAT}|{INTEGER})[jJ]?)|(?P<name>[^\W\d]\w*)|(?P<sign>\*\*|[-+*/!()])|(?P<other>\S)|$)"
)
FACTORIALS = ("", "factorial", "factorial2")
"""By the number of exclamation marks."""
KEYWORDS = frozenset({"as", "if", "in", "is", "or", "and", "not", "for", "def", "del", "try", "none", "true", "false"})

Operator: TypeAlias = Literal["+", "-", "*", "/"]


class UnreadableError(ValueError):
    """This text is no expression of the small language."""


@dataclass(frozen=True, slots=True)
class Number:
    """A literal, as written."""

    text: str


@dataclass(frozen=True, slots=True)
class Name:
    """A symbol, or several written together."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of one argument."""

    function: str
    argument: Node


@dataclass(frozen=True, slots=True)
class Chain:
    """A sum or a product: a first value, then an operator and a value each, from left to right."""

    first: Node
    rest: tuple[tuple[Operator, Node], ...]


@dataclass(frozen=True, slots=True)
class Power:
    """A base and its exponent."""

    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Negative:
    """A value with its sign changed."""

    value: Node


Node: TypeAlias = Number | Name | Call | Chain | Power | Negative


def read_expression(text: str, *, functions: frozenset[str] = frozenset(), implicit: bool = False) -> Node:
    """The tree of an expression; ``implicit`` allows products without a sign and factorials.

    >>> read_expression("2x", implicit=True)
    Chain(first=Number(text='2'), rest=(('*', Name(text='x')),))
    >>> read_expression("__import__('os')")
    Traceback (most recent call last):
    ...
    tether.verifier.upstream_expression.UnreadableError: "'" has no place in an expression
    """
    if len(text) > LONGEST:
        raise UnreadableError(f"{len(text)} letters are too many for an expression: {LONGEST} are read")
    parser = Parser(tokens_of(text), functions, implicit)
    node = parser.sum()
    if parser.kind:
        raise UnreadableError(f"{parser.text!r} has no place here")
    return node


def tokens_of(text: str) -> list[tuple[str, str]]:
    """Kinds and texts of the tokens, closed by one of no kind."""
    tokens, at = [], 0
    while at < len(text) and (found := TOKEN.match(text, at)) and found.lastgroup:
        if found.lastgroup == "other" or found[found.lastgroup].lower() in KEYWORDS:
            raise UnreadableError(f"{found[found.lastgroup]!r} has no place in an expression")
        tokens.append((found.lastgroup, found[found.lastgroup]))
        at = found.end()
    return [*tokens, ("", "")]


class Parser:
    """Reads tokens by Python's precedences; a product without a sign binds as one with it."""

    def __init__(self, tokens: list[tuple[str, str]], functions: frozenset[str], implicit: bool) -> None:
        self.tokens = tokens
        self.functions = functions
        self.implicit = implicit
        self.at = 0
        self.depth = 0

    @property
    def kind(self) -> str:
        """What the next token is; empty at the end."""
        return self.tokens[self.at][0]

    @property
    def text(self) -> str:
        """The next token."""
        return self.tokens[self.at][1]

    def take(self, *texts: str) -> str:
        """The next sign, taken if it is one of these; else nothing."""
        if self.kind == "sign" and self.text in texts:
            self.at += 1
            return self.tokens[self.at - 1][1]
        return ""

    def sum(self) -> Node:
        """Terms between plus and minus."""
        first, rest = self.product(), []
        while sign := self.take("+", "-"):
            rest.append((as_operator(sign), self.product()))
        return Chain(first, tuple(rest)) if rest else first

    def product(self, signs: tuple[str, ...] = ("*", "/")) -> Node:
        """Factors between these signs, or next to each other."""
        first, rest = self.signed(), []
        while True:
            if sign := self.take(*signs):
                rest.append((as_operator(sign), self.signed()))
            elif self.implicit and (self.kind in ("number", "name") or self.text == "("):
                rest.append((as_operator("*"), self.power()))
            else:
                return Chain(first, tuple(rest)) if rest else first

    def signed(self) -> Node:
        """A factor with its signs."""
        minus = 0
        while sign := self.take("+", "-"):
            minus += sign == "-"
        value = self.power()
        return Negative(value) if minus % 2 else value

    def power(self) -> Node:
        """A value, raised or not; towers are read from the right."""
        base = self.value()
        if not self.take("**"):
            return base
        self.deeper()
        exponent = self.signed()
        self.depth -= 1
        return Power(base, exponent)

    def value(self) -> Node:
        """A number, a name, a call, or something in parentheses; with its factorials."""
        kind, text = self.kind, self.text
        if self.take("("):
            node = self.enclosed()
        elif kind == "name" and text in self.functions:
            self.at += 1
            node = Call(text, self.argument())
        elif kind in ("number", "name"):
            self.at += 1
            node = Number(text) if kind == "number" else Name(text)
        else:
            raise UnreadableError(f"{text!r} stands where a value should" if text else "the expression ends too early")
        marks = 0
        while self.implicit and self.take("!"):
            marks += 1
        if marks >= len(FACTORIALS):
            raise UnreadableError(f"{marks} factorials in a row have no meaning")
        return Call(FACTORIALS[marks], node) if marks else node

    def argument(self) -> Node:
        """What a function is applied to: parentheses, or the product behind it up to a division."""
        if self.take("("):
            return self.enclosed()
        if not self.implicit or self.kind not in ("number", "name"):
            raise UnreadableError("a function has no argument")
        self.deeper()
        node = self.product(("*",))
        self.depth -= 1
        return node

    def enclosed(self) -> Node:
        """The rest of a pair of parentheses."""
        self.deeper()
        node = self.sum()
        self.depth -= 1
        if not self.take(")"):
            raise UnreadableError("a parenthesis is not closed")
        return node

    def deeper(self) -> None:
        """One level down, up to a limit."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise UnreadableError(f"more than {DEEPEST} levels are too deep for an expression")


def as_operator(sign: str) -> Operator:
    """The sign as one of the four operators."""
    match sign:
        case "+" | "-" | "*" | "/":
            return sign
    raise AssertionError(sign)
