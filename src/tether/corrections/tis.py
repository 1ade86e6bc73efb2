"""TIS: truncated importance sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

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
    """Weight ``min(w, cap)`` with ``w = proximal / behavior``, detached.

    At level ``token`` each token has its own w; at ``sequence`` its response's geometric mean, at ``product`` its
    response's product.

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

    level: Literal["recipe", "token", "sequence", "product"] = "recipe"
    """At which level w is taken; ``recipe``: that of the clipped ratio, so that their product is ``pi / behavior``."""

    def __post_init__(self) -> None:
        if not 0 < self.cap <= 1e6:
            raise ValueError(f"cap of tis must lie in (0, 1e6] (2 is usual); got {self.cap}")

    @property
    def traits(self) -> Traits:
        """A weight is never 0, so pull-back is kept."""
        return Traits(reads="weight", level=None if self.level == "recipe" else self.level)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Truncate every token's weight."""
        return Weight(log_ratio.detach().exp().clamp(max=self.cap))
