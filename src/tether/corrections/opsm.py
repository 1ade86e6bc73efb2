"""OPSM: a mask of bad responses that the policy has left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS

MOST_DELTA = 1e9
"""Largest bound, in nats: as good as none, since log-ratios end at 20."""


@CORRECTIONS.register("opsm")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OPSM:
    """Off-policy sequence masking: drop a response iff ``A < 0`` and ``mean_t(log below - log above) > delta``.

    ``above`` and ``below`` are the two ends of the edge: by default the current policy and the behavior policy, so that
    the mean estimates how far a response has become less likely. DeepSeek-V3.2 (arXiv:2512.02556); slime reads
    ``clipped`` or ``total``, TRL ``total``. Responses with ``A >= 0`` are never dropped. A 0/1 mask at level
    ``sequence`` whatever the recipe's; single tokens of a dropped response may have moved back. ``[T] -> [T]``.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[-0.1, 0.1, -0.1], advantage=[-1.0, -1.0, 1.0])
    >>> OPSM()(logp.detach(), PolicyTokens(logp), tokens, Statistics({})).value
    tensor([0., 1., 1.])
    """

    delta: float = 1e-4
    """Largest mean of a response that is kept, in nats a token."""
    edge: Literal["total", "clipped", "update", "weight"] = "total"
    """Current and behavior, current and proximal, current and old, or proximal and behavior."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.delta <= MOST_DELTA:
            raise ValueError(f"delta of opsm must lie in [0, {MOST_DELTA:g}] (0.0001 is usual); got {self.delta}")

    @property
    def traits(self) -> Traits:
        """One-sided, hence orthogonal to other masks."""
        return Traits(
            reads=self.edge,
            level="sequence",
            inputs=("logp_old",) if self.edge == "update" else (),
            keeps_pull_back=False,
            is_mask=True,
            is_one_sided=True,
        )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Drop bad responses that have become unlikely."""
        drop = (tokens.advantage < 0) & (-log_ratio.detach() > self.delta)
        return Weight((~drop).to(log_ratio.dtype))
