"""Student's t: how much wider an interval is because its spread is estimated from few numbers."""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from tether.evals.estimators import Interval

LEVEL = 0.95


def seeds_mean(values: list[float]) -> Interval:
    """Mean of one number from each of several seeds with Student's 95 % interval, which holds for the next seed too.

    One seed tells nothing about others: its interval is infinite.

    >>> [round(x, 3) for x in seeds_mean([0.40, 0.50, 0.60])]
    [0.5, 0.252, 0.748]
    """
    mean = float(np.mean(values))
    half = (
        t95(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    )
    return Interval(mean, mean - half, mean + half)


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
