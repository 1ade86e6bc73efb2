"""Decoupled PPO's weight, capped so that its product with the ratio is bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.ratio import Level, edge_log_ratio
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS

NO_CAP = 1e18
"""Largest cap: as good as none, since weight and ratio end at e^20 each, e^40 = 2.4e17."""


@CORRECTIONS.register("decoupled")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Decoupled:
    """Weight ``min(W, cap / P)``, ``W = proximal / behavior``, ``P = pi / proximal``, detached.

    With PPO's clip on P this is decoupled PPO: the clip bounds the update, the weight corrects for the behavior policy
    (Hilton et al., arXiv:2110.00641; AReaL, arXiv:2505.24298). The cap bounds the whole coefficient ``W P``, value and
    gradient, as Hilton's form in logarithms does: ``adj = max(log behavior, log pi - log cap)`` in place of the
    behavior. ``cap = 1e18`` is the textbook's form without one. ``[T] -> [T]``.

    W = 300 and P = 1.1667 make 350, so the weight is held at 100 / 1.1667:

    >>> from dataclasses import replace
    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(350)], advantage=[1.0])
    >>> tokens = replace(tokens, logp_proximal=torch.tensor([log(300)]))
    >>> Decoupled()(tokens.logp_proximal, PolicyTokens(logp), tokens, Statistics({})).value
    tensor([85.7143])
    """

    cap: float = 100.0
    """Largest coefficient ``W P``."""
    w_max: float | None = None
    """Largest weight W itself, whatever the ratio; none by default."""
    level: Level = "token"
    """At which level W and P are taken: the recipe's, if the cap is to bound the very product that the loss has."""

    def __post_init__(self) -> None:
        if not 0.0 < self.cap <= NO_CAP:
            raise ValueError(f"cap of decoupled must lie in (0, {NO_CAP:g}] (100 is usual); got {self.cap}")
        if self.w_max is not None and not 0.0 < self.w_max <= NO_CAP:
            raise ValueError(f"w_max of decoupled must lie in (0, {NO_CAP:g}] (5 is usual); got {self.w_max}")

    @property
    def traits(self) -> Traits:
        """A weight is never 0, so pull-back is kept."""
        return Traits(reads="weight", level=self.level)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Cap the product, then the weight."""
        ratio = edge_log_ratio("clipped", policy.logp.detach(), tokens, self.level)
        capped = torch.minimum(log_ratio.detach(), math.log(self.cap) - ratio).exp()
        return Weight(capped if self.w_max is None else capped.clamp(max=self.w_max))
