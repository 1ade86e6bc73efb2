"""What is wrong with log-probs that do not agree, read off the numbers alone: one place off, or rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tether.records import Floats

LEAST_PAIRS: Final = 16
"""Tokens below which nothing is said."""
CLEARLY: Final = 0.1
"""By so much a shifted copy must correlate better than the aligned one."""
LEAST_CORRELATION: Final = 0.5
TELLING: Final = 0.01
"""Nats below 0 from which a log-prob has bits enough to tell formats apart."""
SHIFTED: Final = "Its log-probs stand one position off the tokens they belong to"
COARSE: Final = (
    "Its log-probs are bfloat16 numbers, which near -20 are 0.125 apart, and log-probs must be float32: have it "
    "compute log_softmax in float32; a cast afterwards brings nothing back"
)


def shift_of(engine: Floats, trainer: Floats, lengths: Sequence[int]) -> int:
    """By how many places (-1, 0 or 1) the engine's numbers stand behind the tokens that they belong to.

    Not 0 where the copy that is shifted within each completion correlates clearly better than the aligned one.

    >>> logp = np.sin(np.arange(40.0)).astype(np.float32)
    >>> shift_of(logp, logp, [20, 20]), shift_of(np.roll(logp, 1), logp, [40]), shift_of(np.roll(logp, -1), logp, [40])
    (0, 1, -1)
    """
    starts = np.cumsum(lengths)[:-1]
    pairs = list(zip(np.split(engine, starts), np.split(trainer, starts), strict=True))
    found = {
        0: _correlation(engine, trainer),
        1: _correlation(np.concatenate([e[1:] for e, _ in pairs]), np.concatenate([t[:-1] for _, t in pairs])),
        -1: _correlation(np.concatenate([e[:-1] for e, _ in pairs]), np.concatenate([t[1:] for _, t in pairs])),
    }
    best = max(found, key=lambda shift: found[shift])
    return best if found[best] >= max(LEAST_CORRELATION, found[0] + CLEARLY) else 0


def is_coarse(logp: Floats) -> bool:
    """Whether every value is one that bfloat16 can hold; by chance one in 65,536 float32 numbers is.

    Log-probs near 0 say nothing: float32 numbers made by a subtraction have few bits there. Nor do too few others.

    >>> values = -np.arange(1.0, 40.0).astype(np.float32) / 7
    >>> is_coarse(values), is_coarse((values.view(np.uint32) & 0xFFFF0000).view(np.float32)), is_coarse(values * 0)
    (False, True, False)
    """
    told = np.unique(logp[logp < -TELLING].astype(np.float32))
    return len(told) >= LEAST_PAIRS // 2 and not (told.view(np.uint32) & 0xFFFF).any()


def _correlation(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Of the probabilities' logarithms; 0 where there is too little to tell."""
    if len(one) < LEAST_PAIRS or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return 0.0
    a, b = (x.astype(np.float64) - x.mean(dtype=np.float64) for x in (one, other))
    scale = np.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / scale) if scale > 0 else 0.0
