"""Student's t: how much wider an interval is because its spread is estimated from few numbers."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from tether.evals.estimators import Interval

LEVEL = 0.95


def seeds_mean(values: list[float]) -> Interval:
    """Mean of one number from each of several seeds with Student's 95 % interval, which holds for the next seed too.

    One seed tells nothing about others, nor do several that agree to the last digit: the interval is infinite.

    >>> [round(x, 3) for x in seeds_mean([0.40, 0.50, 0.60])]
    [0.5, 0.252, 0.748]
    """
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    half = t95(len(values) - 1) * spread / math.sqrt(len(values)) if spread else math.inf
    return Interval(mean, mean - half, mean + half)


def welch(a: list[float], b: list[float]) -> tuple[Interval, float] | None:
    """Mean of ``b`` less mean of ``a``, several seeds each, with Welch's 95 % interval and two-sided p-value.

    Degrees of freedom are rounded down, which makes both a little careful. ``None`` where there is no spread to tell.

    >>> difference, p = welch([0.40, 0.42, 0.41], [0.50, 0.47, 0.49])
    >>> [round(x, 3) for x in difference], round(p, 3)
    ([0.077, 0.043, 0.11], 0.005)
    """
    parts = [float(np.var(x, ddof=1)) / len(x) for x in (a, b)]
    difference, spread = float(np.mean(b) - np.mean(a)), math.sqrt(sum(parts))
    if spread == 0.0:
        return None
    degrees = int(sum(parts) ** 2 / sum(part**2 / (len(x) - 1) for part, x in zip(parts, (a, b), strict=True)))
    half = t95(max(1, degrees)) * spread
    p = 1.0 - _inside(abs(difference) / spread, max(1, degrees))
    return Interval(difference, difference - half, difference + half), p


@cache
def t95(degrees: int) -> float:
    """Two-sided 95 % point of Student's t.

    >>> [round(t95(n), 3) for n in (1, 2, 9, 29)]
    [12.706, 4.303, 2.262, 2.045]
    """
    if degrees < 1:
        raise ValueError(f"Student's t needs at least one degree of freedom; got {degrees}")
    low, high = 0.0, 13.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, degrees) < LEVEL else (low, middle)
    return low


def _inside(t: float, degrees: int) -> float:
    """P(|T| < t): the finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(degrees))
    is_odd = degrees % 2
    square = math.cos(angle) ** 2
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for i in range(1 + is_odd, degrees, 2):
        total += term
        term *= square * i / (i + 1)
    if is_odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
