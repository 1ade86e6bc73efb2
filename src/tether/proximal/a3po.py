"""Proximal = between the behavior policy and the current one, by staleness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.proximal import StandsFor
from tether.core.tokens import TokenBatch
from tether.registry import PROXIMALS

LEAST_PROBABILITY = 1e-10
"""Added to a mixture of probabilities before its logarithm, as in the paper."""


@PROXIMALS.register("a3po")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class A3POProximal:
    """A policy on the way from behavior to current, ``alpha = (N - 1) / N`` of it, N the token's staleness in updates.

    N is that of the moment at which the batch is taken, over all updates that the batch serves.

    ``log behavior + alpha (log pi - log behavior)``, or a mixture of the probabilities (A-3PO, arXiv:2512.06547):
    decoupled PPO without an extra forward pass. A token of staleness 0 or 1 has ``alpha = 0``, its proximal policy is
    the behavior policy. In the first form ``log(pi / proximal) = (1 - alpha) log(pi / behavior)``, so the clip is one
    on ``pi / behavior``, ``1 / (1 - alpha)`` times as wide in logarithms (arXiv:2605.12070). Detached. ``[T] -> [T]``.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.5], advantage=[1.0], stale=2)
    >>> A3POProximal()(tokens, logp.detach())
    tensor([0.2500])
    """

    form: Literal["log-linear", "linear"] = "log-linear"
    """Whether log-probabilities or probabilities are mixed."""

    stands_for: ClassVar[StandsFor] = "proxy"
    inputs: ClassVar[tuple[str, ...]] = ()

    def __call__(self, tokens: TokenBatch, logp: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The mixture."""
        behavior, current = tokens.logp_behavior.float(), logp.detach().float()
        alpha = 1.0 - 1.0 / tokens.staleness.clamp(min=1)
        if self.form == "log-linear":
            return torch.lerp(behavior, current, alpha)
        return (torch.lerp(behavior.exp(), current.exp(), alpha) + LEAST_PROBABILITY).log()
