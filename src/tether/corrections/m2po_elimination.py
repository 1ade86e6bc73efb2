"""M2PO by elimination: the tokens with the largest mismatch are left out until the rest is within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.second_moment import SecondMomentLimit
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS


@CORRECTIONS.register("m2po-elimination")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class M2POElimination:
    """Mask 0/1: tokens with the largest ``d^2`` are dropped until the mean over the rest is below ``budget``.

    The form in which AReaL applies M2PO (arXiv:2510.01161), there on ``log proximal/behavior``. The smallest always
    stays. Tokens of one |d| are kept or dropped together, so that the answer does not depend on their order: ours. Both
    directions are cut, pull-back too. AReaL averages over the tokens that are left, here the denominator is as without
    the mask. ``[T] -> [T]``.

    >>> import torch
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.1, -0.1, 0.5], advantage=[1.0, 1.0, 1.0])
    >>> stats = Statistics({SecondMomentLimit(budget=0.04, of="kept"): torch.tensor(0.1)})
    >>> M2POElimination()(logp.detach(), PolicyTokens(logp), tokens, stats).value
    tensor([1., 1., 0.])
    """

    budget: float = 0.04
    """What the mean over the rest stays below, in nats squared."""
    edge: Literal["total", "weight"] = "total"
    """Whose log-ratio: ``pi/behavior``, or ``proximal/behavior`` where the proximal is another policy."""

    def __post_init__(self) -> None:
        SecondMomentLimit(budget=self.budget, of="kept")  # refuses a budget out of range

    @property
    def traits(self) -> Traits:
        """A mask over its edge, with the limit on |d| of the scope."""
        return Traits(
            reads=self.edge,
            needs=(SecondMomentLimit(budget=self.budget, of="kept"),),
            keeps_pull_back=False,
            is_mask=True,
        )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """1 up to the limit, 0 beyond."""
        limit = stats[SecondMomentLimit(budget=self.budget, of="kept")]
        return Weight((log_ratio.detach().abs() <= limit).to(log_ratio.dtype))
