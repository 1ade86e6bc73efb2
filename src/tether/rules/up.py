"""UP: good tokens without bound, bad ones under PPO's clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import check_radii, clipped
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("up")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class UP:
    """Unbounded positive: ``A exp(log pi - sg[log pi])`` where ``A > 0``, PPO's dual clip elsewhere (arXiv:2607.06987).

    A token with ``A > 0`` has value and gradient A: REINFORCE that ignores how probable the token was to the behavior
    policy, off by the factor r from the importance-weighted gradient. One with ``A < 0`` has PPO's: ``max(r, 1 -
    epsilon_low) A``, at least ``dual_clip A``. ``[T] -> [T]``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(1.36), log(0.68), log(5.0)], advantage=[1.0, -1.0, -1.0])
    >>> out = UP()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.0, -0.8, -3.0], [True, False, False])
    """

    epsilon_low: float = 0.2
    """How far below 1 the ratio of a token with A < 0 may go; nothing bounds it above but the dual clip."""
    dual_clip: float | None = 3.0
    """Bound c > 1 on the loss of tokens with A < 0, as a multiple of |A|. Cuts pull-back tokens."""

    def __post_init__(self) -> None:
        check_radii("up", self.epsilon_low, 0.0, self.dual_clip)

    @property
    def traits(self) -> Traits:
        """Pull-back is kept, but for the dual clip."""
        return Traits(keeps_pull_back=self.dual_clip is None)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip the bad tokens only."""
        bad = clipped(log_ratio, tokens.advantage, (1.0 - self.epsilon_low, 1.0), self.dual_clip)
        is_good = tokens.advantage > 0
        good = tokens.advantage * (1.0 + (policy.logp - policy.logp.detach()))  # value and slope of the exponential
        return Surrogate(objective=torch.where(is_good, good, bad.objective), active=is_good | bad.active)
