"""BAPO: PPO's clip between bounds that balance the two signs of the advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.contributions import BalancedBounds
from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS, check_radii, clipped
from tether.core.tokens import TokenBatch
from tether.registry import RULES

MOST_BOUNDS = 1000
"""On the way of one bound."""


@RULES.register("bapo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BAPO:
    """Clip between the first bounds under which positive advantages contribute ``target`` times what negative ones do.

    BAPO (arXiv:2510.18927), in the order of its code: of all pairs the narrowest first, the lower bound is raised step
    by step through ``low``, then the upper through ``high``; one pair for all tokens of the scope. Bounds are ratios,
    not radii. Then PPO's clip with the dual clip. Input and output ``[T]``.

    Where the scope has asked for (0.8, 1.5), a token at r = 1.6 loses its gradient and one at r = 1.4 keeps it:

    >>> import torch
    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(1.6), log(1.4)], advantage=[1.0, 1.0])
    >>> rule = BAPO()
    >>> out = rule(logp, PolicyTokens(logp), tokens, Statistics({rule.balance: torch.tensor([0.8, 1.5])}))
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.5, 1.4], [False, True])
    """

    low: tuple[float, float] = (0.6, 0.8)
    """Where the lower bound starts, and its end."""
    high: tuple[float, float] = (1.2, 2.0)
    """Where the upper bound starts, and its end."""
    step: float = 0.05
    """By how much a bound is raised at a time; the last time by what is left."""
    target: float = 1.0
    """Contribution of positive advantages, in units of that of negative ones."""
    count: Literal["code", "live"] = "code"
    """What contributes: every token's clamped ratio, as the authors' code has it, or tokens with a gradient alone."""
    dual_clip: float | None = 3.0
    """As in ``ppo``."""

    def __post_init__(self) -> None:
        check_radii("bapo", 0.0, 0.0, self.dual_clip)
        if not (0 <= self.low[0] <= self.low[1] <= 1):
            raise ValueError(f"low of bapo must rise within [0, 1] (0.6 to 0.8 is usual); got {self.low}")
        if not (1 <= self.high[0] <= self.high[1] <= MOST_RADIUS):
            raise ValueError(f"high of bapo must rise within [1, {MOST_RADIUS:g}] (1.2 to 2 is usual); got {self.high}")
        if not 0 < self.target <= MOST_RADIUS:
            raise ValueError(f"target of bapo must lie in (0, {MOST_RADIUS:g}] (1 is usual); got {self.target}")
        widest = max(self.low[1] - self.low[0], self.high[1] - self.high[0])
        if not (0 < self.step <= 1 and widest <= MOST_BOUNDS * self.step):
            raise ValueError(
                f"step of bapo must lie in (0, 1] (0.05 is usual) and lead through at most {MOST_BOUNDS} bounds; "
                f"got {self.step}"
            )

    @property
    def balance(self) -> BalancedBounds:
        """The statistic that finds the bounds."""
        return BalancedBounds(low=self.low, high=self.high, step=self.step, target=self.target, count=self.count)

    @property
    def traits(self) -> Traits:
        """The bounds, over the ratio that is clipped; pull-back is kept, but for the dual clip."""
        return Traits(needs=(self.balance,), keeps_pull_back=self.dual_clip is None)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip every token's ratio between the bounds of the scope."""
        low, high = stats[self.balance].detach()
        return clipped(log_ratio, tokens.advantage, (low, high), self.dual_clip)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """The bounds."""
        low, high = stats[self.balance].tolist()
        return {"bapo/low": low, "bapo/high": high}
