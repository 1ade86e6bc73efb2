"""What a mathematical text says, as a tree: numbers, letters, and operations on them. Data only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


class Unreadable(ValueError):  # noqa: N818  (what the text is, to those who catch it)
    """The text is not, as a whole, an expression that is known here."""


class NeedsLibrary(Unreadable):
    """The text has a sum, an integral, a limit: what only math-verify reads."""


class TooLarge(ValueError):  # noqa: N818
    """The value, or the precision that telling it from others takes, is beyond what is computed."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it was written, exactly.

    >>> Number(Fraction(3, 2), decimals=1).value
    Fraction(3, 2)
    """

    value: Fraction
    decimals: int | None = None
    """Digits after the point, where one was written."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A letter, with what hangs on it: ``x``, ``x_1``, ``alpha``."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operation, a function or (without arguments) a constant."""

    name: str
    args: tuple[Node, ...] = ()


Node: TypeAlias = Number | Symbol | Call

PI, EULER, IMAGINARY, INFINITY = Call("pi"), Call("e"), Call("i"), Call("infinity")


def negative(node: Node) -> Node:
    """Its negative; of a number, the number."""
    if isinstance(node, Number):
        return Number(-node.value, node.decimals)
    return node.args[0] if isinstance(node, Call) and node.name == "neg" else Call("neg", (node,))


def walk(node: Node) -> Iterator[Node]:
    """Itself and all that is in it."""
    yield node
    if isinstance(node, Call):
        for arg in node.args:
            yield from walk(arg)


def symbols(node: Node) -> frozenset[str]:
    """The letters in it.

    >>> sorted(symbols(Call("add", (Symbol("x"), Call("neg", (Symbol("y"),))))))
    ['x', 'y']
    """
    return frozenset(part.name for part in walk(node) if isinstance(part, Symbol))
