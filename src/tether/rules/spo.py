"""SPO: a smooth pull of the ratio towards 1."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS
from tether.core.tokens import TokenBatch
from tether.registry import RULES

LEAST_EPSILON = 1e-6


@RULES.register("spo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SPO:
    """Penalize the square of the ratio's distance from 1: ``r A - |A| (r - 1)^2 / (2 epsilon)`` (arXiv:2401.16025).

    The gradient is ``A r (1 - sign(A (r - 1)) |r - 1| / epsilon)``: on an outward token it fades towards PPO's end
    ``|r - 1| = epsilon`` and is reversed beyond, without bound: at r = 100 it is -49 400 A. Hence ``ratio_cap``, which
    is ours: a ratio above it counts as the cap, in value and gradient, so that such a token is still pulled, as hard
    as one at the cap. No token is cut. ``[T] -> [T]``.

    At r = 1.36 with A = 1 the pull back outweighs the advantage; r = 100 pulls as r = 20 does:

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[math.log(1.36), math.log(100)], advantage=[1.0, 1.0])
    >>> out = SPO()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> [round(x, 3) for x in logp.grad.tolist()]
    [-1.088, -1880.0]
    """

    epsilon: float = 0.2
    """The distance from 1 at which an outward token's gradient is 0."""
    ratio_cap: float = 20.0
    """Largest ratio; 1e9 is none, as in the paper."""

    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        if not LEAST_EPSILON <= self.epsilon <= MOST_RADIUS:
            raise ValueError(
                f"epsilon of spo must lie in [{LEAST_EPSILON:g}, {MOST_RADIUS:g}] (0.2 is usual); got {self.epsilon}"
            )
        if not 1 < self.ratio_cap <= MOST_RADIUS:
            raise ValueError(f"ratio_cap of spo must lie in (1, {MOST_RADIUS:g}] (20 is usual); got {self.ratio_cap}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Penalize every token by its ratio alone."""
        above = (log_ratio.detach() - math.log(self.ratio_cap)).clamp(min=0.0)
        r, advantage = (log_ratio - above).exp(), tokens.advantage  # a constant in the exponent leaves the gradient
        penalty = advantage.abs() * (r - 1.0).square() / (2.0 * self.epsilon)
        return Surrogate(objective=r * advantage - penalty, active=torch.ones_like(tokens.trainable))
