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


def paired_difference(before: NDArray[np.bool_], after: NDArray[np.bool_]) -> Interval:
    """Share of prompts gained less share lost, ``[n]`` right or wrong each, with its 95 % interval.

    Bonett and Price's adjusted interval for paired proportions (2012): one pair is added to those gained and one to
    those lost, so a few prompts of which none changed give no interval of width 0.

    >>> wrong, right = np.array([False] * 4), np.array([True, True, True, False])
    >>> [round(x, 3) for x in paired_difference(wrong, right)]
    [0.75, -0.111, 1.0]
    """
    if before.shape != after.shape or before.ndim != 1 or len(before) < 1:
        raise ValueError(
            f"a paired difference needs two arrays [n] of one length n >= 1; got {before.shape} and {after.shape}"
        )
    n, gained, lost = len(before), int((after & ~before).sum()), int((before & ~after).sum())
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return Interval((gained - lost) / n, max(-1.0, up - down - half), min(1.0, up - down + half))
