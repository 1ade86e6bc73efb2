"""Whose turn it is, and which problem: pure functions of an index, so that a run resumes exactly where it stopped."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_LONGEST = 10_000
"""Period above which shares are rounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    r"""Turns of several sources, the same in every period.

    In a period of ``P`` turns source ``s`` has ``n_s`` of them, as near to the middles of ``n_s`` equal stretches as
    the others allow: its ``k``-th turn is ranked by ``(k + 1/2) / n_s``. After any ``r`` turns it has had
    ``r n_s / P`` within ``(1 + S n_s / P) / 2``, for ``S`` sources.

    >>> mix = Mix.of([2.0, 1.0])
    >>> [mix.turn(index) for index in range(6)]
    [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]
    """

    counts: tuple[int, ...]
    """Turns of each source in a period."""
    order: NDArray[np.int32]
    """``[P]`` whose turn it is."""
    before: NDArray[np.int64]
    """``[P]`` turns that the same source has had before in the period."""

    @classmethod
    def of(cls, weights: Sequence[float]) -> Mix:
        """Turns in proportion to weights: exact where a period of 10,000 turns can hold them, else rounded to it."""
        parts = [Fraction(str(weight)) for weight in weights]
        shares = [part / sum(parts) for part in parts]
        period = math.lcm(*(share.denominator for share in shares))
        return cls.counted([int(share * period) for share in shares] if period <= _LONGEST else _rounded(shares))

    @classmethod
    def counted(cls, counts: Sequence[int]) -> Mix:
        """Turns in a period that has so many of each source."""
        places = np.concatenate([(np.arange(n) + 0.5) / n for n in counts])
        sources = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
        ranks = np.concatenate([np.arange(n, dtype=np.int64) for n in counts])
        order = np.argsort(places, kind="stable")
        return cls(counts=tuple(counts), order=sources[order], before=ranks[order])

    def turn(self, index: int) -> tuple[int, int]:
        """The source of a turn, and how many turns it has had before."""
        period, place = divmod(index, len(self.order))
        source = int(self.order[place])
        return source, period * self.counts[source] + int(self.before[place])


def _rounded(shares: Sequence[Fraction]) -> list[int]:
    """Counts that sum to the longest period, at least 1 each; the largest remainders are rounded up."""
    exact = [share * _LONGEST for share in shares]
    counts = [max(1, math.floor(value)) for value in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: (math.floor(exact[i]) - exact[i], i))
    for i in by_remainder[: max(0, _LONGEST - sum(counts))]:
        counts[i] += 1
    return counts


@functools.lru_cache(maxsize=64)
def shuffled(name: str, count: int) -> NDArray[np.int32]:
    """``[count]`` the numbers below ``count`` in an order that the name decides, the same on every machine.

    >>> shuffled("train/0/dapo/0", 5).tolist()
    [1, 4, 3, 2, 0]
    """
    order = list(range(count))
    random.Random(name).shuffle(order)
    return np.array(order, np.int32)
