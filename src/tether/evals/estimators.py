"""Intervals for accuracies and for the difference of two runs on the same prompts. Standard library and numpy only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054
"""Two-sided 95 % point of the normal distribution."""


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def proportion(successes: int, trials: int) -> Interval:
    """Wilson's score interval of a proportion: right at 0 and 1, unlike the textbook one.

    >>> [round(x, 4) for x in proportion(0, 10)]
    [0.0, 0.0, 0.2775]
    """
    if trials < 1:
        raise ValueError(f"a proportion needs at least one trial; got {trials}")
    p, z2 = successes / trials, Z95 * Z95
    center = (p + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z95 * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    low = 0.0 if successes == 0 else center - half
    high = 1.0 if successes == trials else center + half
    return Interval(p, max(0.0, low), min(1.0, high))


def paired_difference(before: NDArray[np.float64], after: NDArray[np.float64]) -> Interval:
    """Mean of ``after - before`` over the same prompts, ``[n]`` each, with the normal 95 % interval (ddof 1).

    >>> [round(x, 3) for x in paired_difference(np.array([0., 0, 1, 0]), np.array([1., 1, 1, 0]))]
    [0.5, -0.066, 1.066]
    """
    if before.shape != after.shape or before.ndim != 1 or len(before) < 2:
        raise ValueError(
            f"a paired difference needs two arrays [n] of one length n >= 2; got {before.shape} and {after.shape}"
        )
    difference = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    mean, half = float(difference.mean()), Z95 * float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return Interval(mean, mean - half, mean + half)
