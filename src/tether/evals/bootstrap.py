"""Interval of a mean over problems by the bootstrap: problems are drawn again, their samples stay together.

BCa (Efron 1987), as scores of problems are skew: most are all right or all wrong, and a percentile interval is then
off to one side. A bootstrap of n problems is too narrow by ``sqrt((n - 1) / n)`` and by normal for Student's t, so the
nominal level is widened as Hesterberg (2015) does: ``alpha' = Phi(-sqrt(n / (n - 1)) t(n - 1))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tether.evals.estimators import Interval, paired_mean, wilson
from tether.evals.student import t95

FEWEST: Final = 10
"""Below so many problems a bootstrap knows too few values; the wide closed form takes its place."""
RESAMPLES: Final = 10_000
CHUNK: Final = 2**20
"""Drawn numbers at a time."""
FEW: Final = 4
"""Values are few if each occurs so often on average."""

Floats = NDArray[np.float64]
NORMAL: Final = NormalDist()


def mean_score(scores: Floats, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """Mean of scores between 0 and 1, one a problem, ``[n]``, with its 95 % interval; NaN is left out.

    Wilson's interval over n problems takes its place where scores are 0 and 1 only (one sample a problem, a vote), for
    which it is made; and where fewer than 10 are known or all are the same (4 of 8 each): it is never of width 0 and,
    as no scores spread more than those that are 0 or 1, too wide rather than too narrow.

    >>> [round(x, 3) for x in mean_score(np.ones(30))]
    [1.0, 0.886, 1.0]
    """
    return _interval(scores, lambda known: wilson(float(known.mean()), len(known)), (0.0, 1.0), seed, resamples)


def mean_difference(differences: Floats, *, seed: int = 0, resamples: int = RESAMPLES) -> Interval:
    """The same for differences of two scores of one problem, between -1 and 1. Of one sample a problem, or
    where fewer than ten problems differ: Bonett and Price.

    >>> [round(x, 3) for x in mean_difference(np.zeros(30))]
    [0.0, -0.087, 0.087]
    """
    return _interval(differences, paired_mean, (-1.0, 1.0), seed, resamples)


def _interval(
    values: Floats, closed_form: Callable[[Floats], Interval], ends: tuple[float, float], seed: int, resamples: int
) -> Interval:
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    if known.ndim != 1 or not len(known):
        raise ValueError(f"a mean over problems needs numbers [n] that are not all NaN; got shape {np.shape(values)}")
    if known.min() < ends[0] or known.max() > ends[1]:
        raise ValueError(f"scores lie in {ends[0]:g} .. {ends[1]:g}; got {known.min():g} .. {known.max():g}")
    is_plain = bool(np.isin(known, (-1.0, 0.0, 1.0)).all())
    has_few = np.ptp(known) < 1e-12 or (ends[0] < 0 and np.count_nonzero(known) < FEWEST)
    if is_plain or len(known) < FEWEST or has_few:
        return closed_form(known)
    mean = float(known.mean())
    means = resampled_means(known, seed, resamples)
    low, high = np.quantile(means, _levels(known, means))
    return Interval(mean, min(mean, float(low)), max(mean, float(high)))


def resampled_means(values: Floats, seed: int, resamples: int) -> Floats:
    """Means of ``n`` values drawn with replacement from ``[n]``, so many times, ``[resamples]``.

    Shares of k samples are few different values: then only how often each is drawn is drawn, which is the same, faster.
    """
    numbers, n = np.random.default_rng(seed), len(values)
    different, counts = np.unique(values, return_counts=True)
    if FEW * len(different) <= n:
        drawn = numbers.multinomial(n, counts / n, resamples)
        return np.asarray(drawn @ different / n, np.float64)
    rows = max(1, CHUNK // n)
    parts = [min(rows, resamples - first) for first in range(0, resamples, rows)]
    return np.concatenate([values[numbers.integers(0, n, (m, n), np.int32)].mean(1) for m in parts])


def _levels(values: Floats, means: Floats) -> tuple[float, float]:
    """Which quantiles of the means are the ends: moved by their bias ``z0`` and by the skewness of the values."""
    n, off = len(values), values - values.mean()
    tie = 1e-12
    below = float(np.mean(means < values.mean() - tie) + np.mean(means < values.mean() + tie)) / 2
    z0 = NORMAL.inv_cdf(min(max(below, 1e-6), 1 - 1e-6))
    acceleration = float((off**3).sum()) / (6 * float((off**2).sum()) ** 1.5)
    reach = math.sqrt(n / (n - 1)) * t95(n - 1)
    low, high = (NORMAL.cdf(z0 + moved / max(1 - acceleration * moved, 1e-3)) for moved in (z0 - reach, z0 + reach))
    return low, high
