"""Sampled tokens apart by where they stand, and by how probable they were: parts for a comparison of two sides."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tether.records import Floats, Rollout

Mask = NDArray[np.bool_]
POSITIONS: Final = (1, 8, 32, 128, 512, 2048, 8192)
"""Last place of each part, the first sampled token being 1; what is behind them is one more."""
PROBABILITIES: Final = (1e-3, 0.01, 0.1, 0.5, 0.9)
"""Upper ends, each outside of its part; above the last is one more."""


def by_position(rollouts: Sequence[Rollout]) -> dict[str, Mask]:
    """``[T]`` of each part by the token's place in its response; parts that no response reaches are left out.

    Errors that a cache carries along grow with the place; one of the prompt alone shows at token 1.
    """
    place = np.concatenate([np.arange(1, len(rollout.completion) + 1) for rollout in rollouts])
    parts = {
        f"token {_span(low + 1, high)}": (low < place) & (place <= high) for low, high in pairwise((0, *POSITIONS))
    }
    parts[f"token above {POSITIONS[-1]}"] = place > POSITIONS[-1]
    return {name: part for name, part in parts.items() if part.any()}


def by_probability(logp_behavior: Floats) -> dict[str, Mask]:
    """``[T]`` of each part by the probability that the token was sampled with; parts without a token are left out.

    Rounded logits move ``log mu`` the more, the less probable the token is; a difference at probable tokens is another
    one: of the model, of the temperature, of what was sampled among.

    >>> {name: part.tolist() for name, part in by_probability(np.log(np.array([0.05, 0.95], np.float32))).items()}
    {'mu 0.01 to 0.1': [True, False], 'mu above 0.9': [False, True]}
    """
    mu = np.exp(logp_behavior.astype(np.float64))
    ends = (0.0, *PROBABILITIES)
    parts = {f"mu {low:g} to {high:g}": (low <= mu) & (mu < high) for low, high in pairwise(ends)}
    parts[f"mu above {ends[-1]:g}"] = mu >= ends[-1]
    return {name: part for name, part in parts.items() if part.any()}


def _span(first: int, last: int) -> str:
    """``1``, ``2-8``."""
    return str(first) if first == last else f"{first}-{last}"
