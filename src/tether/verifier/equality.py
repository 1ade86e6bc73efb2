"""Whether two expressions are worth the same, for every value of their letters."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from tether.verifier.evaluation import Evaluation, NotExact, Point, Undefined, exact
from tether.verifier.expressions import IMAGINARY, INFINITY, Node, TooLarge, negative, symbols, walk

DIGITS = 80
"""To begin with; more where values are large or small."""
ENOUGH = 3
"""Points at which two expressions must be seen to agree, and at none to differ."""
RANGES = ((1, 4), (1, 4), (0, 1), (-4, 4), (-4, 4), (-1, 1), (-4, 4), (4, 20), (-20, -4))


def points(names: frozenset[str], are_positive: bool) -> Iterator[Point]:
    """Values for letters: the same for the same letters, and none that an answer could foresee a coincidence at."""
    for n, (low, high) in enumerate(RANGES):
        if are_positive and low < 0:
            continue
        yield {
            name: Fraction(random.Random(f"{n}:{name}").randrange(low * 997, high * 997) * 2 + 1, 1994)
            for name in names
        }


def are_equal(gold: Node, other: Node, *, are_positive: bool = False) -> bool:
    """Whether the two are equal: exactly if rational, else to at least 80 digits, with letters at several points.

    Agreement at random points is how identities are told (Schwartz 1980 for polynomials). Over the reals: a point
    where both leave them, as ``sqrt(x)`` does for x < 0, says nothing; one where a single one does tells them apart.

    >>> from tether.verifier.expressions import Call, Number
    >>> x = Call("root", (Number(Fraction(8)), Number(Fraction(2))))
    >>> y = Call("mul", (Number(Fraction(2)), Call("root", (Number(Fraction(2)), Number(Fraction(2))))))
    >>> are_equal(x, y)
    True
    """
    if gold == other:
        return True
    if INFINITY in (gold, other) or negative(INFINITY) in (gold, other):
        return False
    names = symbols(gold) | symbols(other)
    if not names:
        return _agree(gold, other, {}) is True
    has_imaginary = any(part == IMAGINARY for node in (gold, other) for part in walk(node))
    seen, beyond = 0, 0
    for point in points(names, are_positive):
        agrees = _agree(gold, other, point, is_real=not has_imaginary)
        if agrees is False:
            return False
        seen += agrees is True
        beyond += agrees is None
    if seen >= ENOUGH:
        return True
    return not seen and bool(beyond) and _agree_off_the_reals(gold, other, names)


def factor(gold: Node, other: Node) -> Fraction | float | None:
    """The constant that the first is times the second, as equations may differ by; ``None`` where there is none."""
    names = symbols(gold) | symbols(other)
    if symbols(gold) != symbols(other) or not names:
        return None
    found: list[Any] = []
    for point in points(names, False):
        try:
            run = Evaluation(DIGITS, point)
            a, b = run.value(gold), run.value(other)
        except (Undefined, TooLarge):
            continue
        if (a == 0) != (b == 0):
            return None
        if a != 0:
            found.append(a / b)
            if abs(found[-1] - found[0]) > abs(found[0]) * run.mp.mpf(10) ** -40:
                return None
    if len(found) < ENOUGH or abs(run.mp.im(found[0])) > 0:
        return None
    return float(run.mp.re(found[0])) or None


def _agree(gold: Node, other: Node, point: Point, *, is_real: bool = False) -> bool | None:
    """Whether they agree at a point; ``None`` where neither has a value there."""
    try:
        return exact(gold, point) == exact(other, point)
    except (NotExact, Undefined):
        pass
    except TooLarge:
        if not point:
            raise
        return None
    digits = DIGITS
    while True:
        try:
            a, first = _value(gold, digits, point)
            b, second = _value(other, digits, point)
        except TooLarge:
            if point:
                return None
            raise
        if a is None or b is None:
            return None if a is b and point else False
        if is_real and not (first.is_real and second.is_real):
            return False if first.is_real or second.is_real else None
        needed = DIGITS + int(3 * max(first.magnitude, second.magnitude))
        if needed <= digits:
            return bool(abs(a - b) <= max(abs(a), abs(b)) * first.mp.mpf(10) ** -(digits // 2 + digits // 8))
        digits = needed


def _value(node: Node, digits: int, point: Point) -> tuple[Any, Evaluation]:
    run = Evaluation(digits, point)
    try:
        return run.value(node), run
    except Undefined:
        return None, run


def _agree_off_the_reals(gold: Node, other: Node, names: frozenset[str]) -> bool:
    agreed = [_agree(gold, other, point) for point in points(names, True)]
    return False not in agreed and agreed.count(True) >= ENOUGH
