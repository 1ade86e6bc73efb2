"""Two runs on the same problems: how much better the second is, and whether that can be chance.

Problems differ far more among each other than runs do, so a difference is taken problem by problem before anything is
averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tether.errors import DataError
from tether.evals.bootstrap import CHUNK, Floats, mean_difference
from tether.evals.estimators import Interval

MOST_EXACT: Final = 16
"""Problems that differ, up to which all 2^n signs are tried."""
FLIPS: Final = 10_000


class Paired(NamedTuple):
    """The second run less the first."""

    difference: Interval
    """Mean over problems of the difference of avg@k; the interval is by bootstrap over problems."""
    p: float
    """Chance of a difference at least as large if the runs were exchangeable problem by problem."""
    num_problems: int


def paired(a: NDArray[np.generic], b: NDArray[np.generic], *, seed: int = 0) -> Paired:
    """``b`` against ``a`` on the same n problems: right or wrong ``[n, k]`` (k may differ), or scores ``[n]``.

    >>> wrong, right = np.zeros((8, 2), bool), np.ones((8, 2), bool)
    >>> result = paired(wrong, right)
    >>> result.difference.value, result.p
    (1.0, 0.0078125)
    """
    before, after = (np.asarray(x, np.float64).reshape(len(x), -1).mean(1) for x in (a, b))
    if len(before) != len(after):
        raise ValueError(f"paired runs have the same problems; got {len(before)} and {len(after)}")
    differences = after - before
    known = differences[~np.isnan(differences)]
    return Paired(mean_difference(known, seed=seed), sign_flip_p(known, seed=seed), len(known))


def matched(a: Mapping[str, float], b: Mapping[str, float], *, shared_only: bool = False) -> tuple[Floats, Floats]:
    """Scores of two runs in one order of problems; other problems on one side are an error unless they may be left out.

    >>> [x.tolist() for x in matched({"x": 0.5, "y": 1.0}, {"y": 0.0, "x": 0.25})]
    [[0.5, 1.0], [0.25, 0.0]]
    """
    shared = [key for key in a if key in b]
    if not shared or (not shared_only and not len(shared) == len(a) == len(b)):
        raise DataError(
            f"a paired comparison needs the same problems in both runs; one has {len(a)}, the other {len(b)}, "
            f"shared are {len(shared)}: evaluate both with the same task, prompts and seed"
        )
    return np.array([a[key] for key in shared], np.float64), np.array([b[key] for key in shared], np.float64)


def sign_flip_p(differences: Floats, *, seed: int = 0, flips: int = FLIPS) -> float:
    """Two-sided p-value: share of sign patterns under which ``|sum d|`` is at least what it is.

    A problem whose difference is 0 says nothing. All patterns of up to 16 others are tried; beyond that ``flips`` of
    them, and the one seen counts as one more, ``(r + 1) / (m + 1)``, so no p-value is 0.

    >>> sign_flip_p(np.array([0.5, 0.25, 0.0]))
    0.5
    """
    moved = differences[differences != 0]
    n, enough = len(moved), abs(float(moved.sum())) - 1e-9
    if n <= MOST_EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=n))).reshape(2**n, n)
        return float(np.mean(np.abs(signs @ moved) >= enough))
    numbers, rows = np.random.default_rng(seed), max(1, CHUNK // n)
    parts = [min(rows, flips - first) for first in range(0, flips, rows)]
    signs_of = (numbers.integers(0, 2, (m, n), np.int8) * 2.0 - 1.0 for m in parts)
    reached = sum(int((np.abs(signs @ moved) >= enough).sum()) for signs in signs_of)
    return (reached + 1) / (flips + 1)


def holm(p: Sequence[float]) -> list[float]:
    """p-values of several comparisons, each made larger so that the chance of any false one stays what it says.

    Holm (1979): the smallest times m, the next times m - 1, never falling, at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, largest = sorted(range(len(p)), key=lambda i: p[i]), 0.0
    adjusted = [0.0] * len(p)
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = largest
    return adjusted
