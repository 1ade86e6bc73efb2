"""CISPO: REINFORCE whose weight is clipped, so that every token keeps a gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import check_radii, reinforced
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("cispo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class CISPO:
    """Clip the weight, not the objective: ``sg[clip(r, 1 - epsilon_low, 1 + epsilon_high)] A log pi``.

    MiniMax-M1 (arXiv:2506.13585). The gradient is A times the clipped ratio: no token loses it, whichever way it moves.
    ``[T] -> [T]``. Elsewhere the same name takes the bound itself: TRL's ``epsilon_high`` is our ``1 + epsilon_high``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(5.0), log(0.5)], advantage=[1.0, 1.0])
    >>> CISPO()(logp, PolicyTokens(logp), tokens, Statistics({})).objective.sum().backward()
    >>> [round(x, 4) for x in logp.grad.tolist()]
    [1.2, 0.5]
    """

    epsilon_low: float | None = None
    """How far below 1 the weight may go; by default to 0."""
    epsilon_high: float = 0.2
    """How far above 1 the weight may go."""

    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        check_radii("cispo", 1.0 if self.epsilon_low is None else self.epsilon_low, self.epsilon_high, None)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip every token's weight into one interval."""
        lower = None if self.epsilon_low is None else 1.0 - self.epsilon_low
        weight = log_ratio.detach().exp().clamp_(min=lower, max=1.0 + self.epsilon_high)
        return reinforced(weight, policy, tokens.advantage)
