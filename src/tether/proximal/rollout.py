"""Proximal = what the engine reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.proximal import StandsFor
from tether.core.tokens import TokenBatch
from tether.registry import PROXIMALS


@PROXIMALS.register("rollout")
@final
@dataclass(frozen=True, slots=True)
class RolloutProximal:
    """The engine's own log-probabilities: the clipped ratio is ``pi / behavior``, staleness and mismatch together.

    The rollout-logprob denominator of the SAT paper (arXiv:2607.18722); needs no extra forward pass. ``[T] -> [T]``.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.5], advantage=[1.0])
    >>> RolloutProximal()(tokens, logp.detach())
    tensor([0.])
    """

    stands_for: ClassVar[StandsFor] = "behavior"
    inputs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, tokens: TokenBatch, logp: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The behavior log-probabilities."""
        return tokens.logp_behavior
