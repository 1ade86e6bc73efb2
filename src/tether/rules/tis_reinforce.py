"""TIS as a loss: REINFORCE with a truncated weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS, reinforced
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("tis-reinforce")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TISReinforce:
    """Truncated importance sampling of REINFORCE: ``sg[min(r, cap)] A log pi``, as Qwen writes it (arXiv:2512.01374).

    The weight reads the whole ratio; the correction ``tis`` is the other form, a weight on a clipped ratio against an
    anchor. With one update a batch both have this gradient, since the ratio to the anchor is 1. No token is cut.
    ``cispo`` with ``epsilon_high = cap - 1`` is the same function under another usual bound. ``[T] -> [T]``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(100.0), log(0.5)], advantage=[1.0, 1.0])
    >>> TISReinforce()(logp, PolicyTokens(logp), tokens, Statistics({})).objective.sum().backward()
    >>> [round(x, 4) for x in logp.grad.tolist()]
    [5.0, 0.5]
    """

    cap: float = 5.0
    """Largest weight; bounds the variance at the price of bias. 2 to 5 are usual."""

    traits: ClassVar[Traits] = Traits()

    def __post_init__(self) -> None:
        if not 1 <= self.cap <= MOST_RADIUS:
            raise ValueError(f"cap of tis-reinforce must lie in [1, {MOST_RADIUS:g}] (5 is usual); got {self.cap}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Truncate every token's weight."""
        return reinforced(log_ratio.detach().exp().clamp(max=self.cap), policy, tokens.advantage)
