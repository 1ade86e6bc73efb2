"""Intervals for accuracies and for the difference of two runs on the same prompts. Standard library and numpy only."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    p, low, high = wilson(successes / trials, trials)
    return Interval(p, 0.0 if successes == 0 else low, 1.0 if successes == trials else high)


def wilson(p: float, n: int) -> Interval:
    """Wilson's interval of a mean ``p`` of ``n`` numbers between 0 and 1.

    Made for numbers that are 0 or 1; for others it is wide, as their variance is at most ``p (1 - p)``.

    >>> [round(x, 3) for x in wilson(1.0, 30)]
    [1.0, 0.886, 1.0]
    """
    z2 = Z95 * Z95
    center = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 * math.sqrt(max(0.0, p * (1 - p)) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return Interval(p, max(0.0, min(p, center - half)), min(1.0, max(p, center + half)))


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
    return paired_mean(after.astype(np.float64) - before.astype(np.float64))


def paired_mean(differences: NDArray[np.float64]) -> Interval:
    """Mean of differences between -1 and 1, ``[n]``, by Bonett and Price: never of width 0, wide where few are known.

    One difference of 1 and one of -1 are added, then the interval is the usual one of a mean.

    >>> [round(x, 3) for x in paired_mean(np.zeros(30))]
    [0.0, -0.087, 0.087]
    """
    n = len(differences)
    center, square = float(differences.sum()) / (n + 2), (float((differences**2).sum()) + 2) / (n + 2)
    half = Z95 * math.sqrt((square - center * center) / (n + 2))
    return Interval(float(differences.mean()), max(-1.0, center - half), min(1.0, center + half))


def trailing(values: Sequence[float], share: float = 0.25) -> float:
    """Mean of the last ``ceil(share n)`` of ``n`` values in order of steps: what a run settled on.

    The last value alone is noisy, the best one is optimistic: the largest of several noisy numbers.

    >>> trailing([0.1, 0.2, 0.9, 0.4, 0.6])
    0.5
    """
    return float(np.mean(values[-num_trailing(len(values), share) :]))


def num_trailing(n: int, share: float = 0.25) -> int:
    """How many of ``n`` values the trailing mean is over.

    >>> num_trailing(4), num_trailing(5)
    (1, 2)
    """
    if n < 1 or not 0 < share <= 1:
        raise ValueError(f"a trailing mean needs n >= 1 values and a share in (0, 1]; got n = {n}, share = {share}")
    return math.ceil(share * n)
