"""TIS: truncated importance sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS


@CORRECTIONS.register("tis")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TIS:
    """Weight ``min(w, cap)`` with ``w = proximal / behavior`` at the recipe's level, detached.

    Token by token at level ``token``; at level ``sequence`` every token has its response's geometric mean.

    Truncated importance sampling (Yao et al. 2025) as slime and verl apply it to a ratio against the anchor: the weight
    corrects what the ratio cannot see. With ``proximal = rollout`` the ratio is complete and the recipe is refused.
    ``[T] -> [T]``.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.3, 1.0], advantage=[1.0, 1.0])
    >>> TIS(cap=2.0)(logp.detach(), PolicyTokens(logp), tokens, Statistics({})).value
    tensor([1.3499, 2.0000])
    """

    cap: float = 2.0
    """Largest weight; bounds the variance at the price of bias."""

    traits: ClassVar[Traits] = Traits(reads="weight")

    def __post_init__(self) -> None:
        if not 0 < self.cap <= 1e6:
            raise ValueError(f"cap of tis must lie in (0, 1e6] (2 is usual); got {self.cap}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Truncate every token's weight."""
        return Weight(log_ratio.detach().exp().clamp(max=self.cap))
