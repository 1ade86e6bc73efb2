"""Proximal = what the engine reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.algorithm import StandsFor
from tether.registry import PROXIMALS


@PROXIMALS.register("rollout")
@final
@dataclass(frozen=True, slots=True)
class RolloutProximal:
    """The engine's own log-probabilities: the clipped ratio is ``pi / behavior``, staleness and mismatch together.

    The rollout-logprob denominator of the SAT paper (arXiv:2607.18722); needs no extra forward pass. ``[T] -> [T]``.

    >>> import torch
    >>> RolloutProximal()(torch.tensor([-0.4]), torch.tensor([-1.0]))
    tensor([-1.])
    """

    stands_for: ClassVar[StandsFor] = "behavior"

    def __call__(self, logp_anchor: Float[Tensor, "T"], logp_behavior: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The behavior log-probabilities."""
        return logp_behavior
