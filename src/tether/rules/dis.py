"""DIS: REINFORCE on the tokens whose ratio lies inside an interval, and on no other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS, reinforced
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("dis")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DIS:
    """Two-sided mask on REINFORCE: ``sg[r 1[1 - epsilon_low < r < 1 + epsilon_high]] A log pi`` (arXiv:2607.07508).

    The loss of SAO. Both ends are open, and the mask does not look at the advantage: a token outside is dropped also
    where it would move back. (0.3, 5.0) is the paper's for reasoning with tools, (0.8, 3.0) for code. ``[T] -> [T]``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(5.0), log(0.68)], advantage=[1.0, 1.0])
    >>> out = DIS()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> [round(x, 4) for x in logp.grad.tolist()], out.active.tolist()
    ([5.0, 0.0], [True, False])
    """

    epsilon_low: float = 0.3
    """How far below 1 the ratio may go; 1 for no bound."""
    epsilon_high: float = 5.0
    """How far above 1 the ratio may go."""

    traits: ClassVar[Traits] = Traits(keeps_pull_back=False)

    def __post_init__(self) -> None:
        if not 0 < self.epsilon_low <= 1:
            raise ValueError(f"epsilon_low of dis must lie in (0, 1] (0.3 is usual); got {self.epsilon_low}")
        if not 0 < self.epsilon_high <= MOST_RADIUS:
            raise ValueError(
                f"epsilon_high of dis must lie in (0, {MOST_RADIUS:g}] (5 is usual); got {self.epsilon_high}"
            )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Drop every token whose ratio lies outside."""
        r = log_ratio.detach().exp()
        inside = (r > 1.0 - self.epsilon_low) & (r < 1.0 + self.epsilon_high)
        return reinforced(torch.where(inside, r, 0.0), policy, tokens.advantage)
