"""PPO: the clipped surrogate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import check_radii, clipped
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("ppo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PPO:
    """Clipped surrogate: ``min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A)``.

    Schulman et al. 2017 (arXiv:1707.06347); separate radii after DAPO (arXiv:2503.14476); dual clip after Ye et al.
    2019 (arXiv:1912.09729): for ``A < 0`` the objective is at least ``dual_clip * A``. At ratio level ``sequence``
    this is GSPO's clip. Input and output ``[T]``; the gradient of a kept token is ``A r``, of a cut one 0.

    A token at r = 1.5 with A = 1 is held at 1.2 and loses its gradient; one at r = 1.1 keeps it:

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(1.5), log(1.1)], advantage=[1.0, 1.0])
    >>> out = PPO()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.2, 1.1], [False, True])
    """

    epsilon_low: float = 0.2
    """How far below 1 the ratio may go."""
    epsilon_high: float = 0.2
    """How far above 1 the ratio may go; DAPO's clip-higher is 0.28."""
    dual_clip: float | None = None
    """Bound c > 1 on the loss of tokens with A < 0, as a multiple of |A|; 3 is usual. Cuts pull-back tokens."""

    def __post_init__(self) -> None:
        check_radii("ppo", self.epsilon_low, self.epsilon_high, self.dual_clip)

    @property
    def traits(self) -> Traits:
        """Pull-back is kept, but for the dual clip."""
        return Traits(keeps_pull_back=self.dual_clip is None)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip every token's ratio into one interval."""
        bounds = (1.0 - self.epsilon_low, 1.0 + self.epsilon_high)
        return clipped(log_ratio, tokens.advantage, bounds, self.dual_clip)
