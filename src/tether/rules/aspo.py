"""ASPO: PPO's clip with the weight turned over where the advantage is positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS, check_radii
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("aspo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ASPO:
    """Weight ``1/r`` instead of r where ``A > 0``: rare tokens are learned fastest (arXiv:2510.06062).

    ``A > 0``: 0 beyond ``1 + epsilon_high``, else the gradient is ``A min(1/r, cap)``. ``A < 0``: 0 below
    ``1 - epsilon_low``, else ``A min(r, cap)``: a dual clip that keeps its gradient. Where the cap holds, the objective
    is ``cap A log pi``, else ``A / r`` or ``A r``; a cut token has the value at its bound. So the gradient is what
    matters, values of different branches cannot be compared. The authors' radii for tokens of high entropy are not
    offered. Input and output ``[T]``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(0.5), log(0.2), log(5)], advantage=[1.0, 1.0, -1.0])
    >>> out = ASPO()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> logp.grad
    tensor([ 2.,  3., -3.])
    """

    epsilon_low: float = 0.2
    """How far below 1 the ratio may go where ``A < 0``."""
    epsilon_high: float = 0.2
    """How far above 1 the ratio may go where ``A > 0``."""
    cap: float = 3.0
    """Largest weight, of either sign."""

    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        check_radii("aspo", self.epsilon_low, self.epsilon_high, None)
        if not 1 < self.cap <= MOST_RADIUS:
            raise ValueError(f"cap of aspo must lie in (1, {MOST_RADIUS:g}] (3 is usual); got {self.cap}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Turn the weight over, cut what is beyond the bound, cap the rest."""
        upwards = tokens.advantage > 0
        at = log_ratio.detach()
        moved = torch.where(upwards, at, -at)  # away from the data where positive
        weight = (-moved).exp()
        most, least = 1.0 + self.epsilon_high, 1.0 - self.epsilon_low
        active = torch.where(upwards, at.exp() <= most, at.exp() >= least)
        kept = weight * (log_ratio - at).exp()  # value 1/r or r, and as much gradient
        objective = torch.where(weight > self.cap, self.cap * policy.logp, kept)
        bound = torch.where(upwards, 1.0 / most, least)
        return Surrogate(torch.where(active, objective, bound) * tokens.advantage, active)
