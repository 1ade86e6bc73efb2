"""A step size of our own: a smaller step when the policy has drifted far from its data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.rule import Traits
from tether.core.statistics import Sofar, Statistics
from tether.core.tokens import TokenBatch, only
from tether.registry import STEP_SIZES


@final
@dataclass(frozen=True, slots=True)
class AbsoluteMean:
    """Mean of ``|d|`` over trainable tokens, in nats, in float64; 0 if there are none.

    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import measure
    >>> tokens, d = tokens_of(log_ratio=[0.5, -0.25], advantage=[1.0, 1.0])
    >>> measure([(d.detach(), tokens)], [AbsoluteMean()])[AbsoluteMean()].item()
    0.375
    """

    rounds: ClassVar[int] = 1

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Float64[Tensor, "2"]:
        """Number of tokens, sum of |d|."""
        moved = only(tokens.trainable, d.detach()).abs().clamp(max=LOG_RATIO_LIMIT)
        return torch.stack([tokens.trainable.sum(dtype=torch.float64), moved.sum(dtype=torch.float64)])

    def reduce(self, parts: Sequence[Tensor]) -> Float64[Tensor, "2"]:
        """Sums of sums."""
        return torch.stack(list(parts)).sum(0)

    def finish(self, reduced: Sofar) -> Float64[Tensor, ""]:
        """Their quotient."""
        count, total = reduced[0].unbind()
        return total / count.clamp(min=1.0)


@STEP_SIZES.register("drift-budget")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DriftBudget:
    """``min(1, target / mean |d|)``: the learning rate falls as the drift exceeds its budget. Our own.

    ``d = logp - logp_behavior`` over the trainable tokens of the step, staleness and engine together. A drift of twice
    the target halves the step, so that the product of step and drift stays at what the target allows. ``[] -> []``,
    float64.

    >>> step_size = DriftBudget(target=0.01)
    >>> step_size(Statistics({AbsoluteMean(): torch.tensor(0.02)})).item()
    0.5
    """

    target: float = 0.01
    """Mean |d|, in nats, up to which the rate is left as it is. The default is where the stable runs of
    arXiv:2607.18722 ended: 0.006 to 0.013 at a lag of 1 and of 8, a run that diverged above 6."""

    def __post_init__(self) -> None:
        if not 0 < self.target <= LOG_RATIO_LIMIT:
            raise ValueError(
                f"target of drift-budget must lie in (0, {LOG_RATIO_LIMIT:g}] (0.01 is usual); got {self.target}"
            )

    @property
    def traits(self) -> Traits:
        """The mean of |d| to the behavior policy, token by token."""
        return Traits(reads="total", level="token", needs=(AbsoluteMean(),))

    def __call__(self, stats: Statistics) -> Float[Tensor, ""]:
        """The factor of this update; a drift of 0 leaves the rate as it is."""
        return (self.target / stats[AbsoluteMean()].detach()).clamp(max=1.0)
