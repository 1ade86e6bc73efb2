"""q as a running average of the quantiles of updates (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.memory import Smoothed
from tether.core.statistics import AbsoluteQuantile, Statistics
from tether.core.tokens import TokenBatch
from tether.registry import SCALES


@SCALES.register("ema")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Average:
    """``q_k = decay q_(k-1) + (1 - decay) Q_k``, Q_k the quantile of update k (ours, not in the paper). ``[T] -> []``.

    Between batch-relative and absolute: an update whose mismatch stands out is judged by those before it, while a slow
    change is followed within about ``1 / (1 - decay)`` updates. The first update is the average of itself.

    >>> import torch
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.1, -0.2], advantage=[1.0, 1.0])
    >>> scale = Average(level=0.9, decay=0.75)
    >>> so_far = scale.needs[0].blend(torch.tensor(0.02), torch.tensor(0.06))  # once an update, by the trainer
    >>> scale(tokens, Statistics({scale.needs[0]: so_far}))
    tensor(0.0300)
    """

    level: float = 0.9
    """Share of an update's tokens at or below its quantile."""
    decay: float = 0.9
    """How much of the average so far stays, in [0, 1); 0 is the plain quantile."""

    inputs: ClassVar[tuple[str, ...]] = ()
    is_per_token: ClassVar[bool] = False

    def __post_init__(self) -> None:
        AbsoluteQuantile(self.level)  # refuses a level outside (0, 1]
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay of the ema scale must lie in [0, 1) (0.9 is usual); got {self.decay}")

    @property
    def needs(self) -> tuple[Smoothed]:
        """The running average of the quantile of |d|."""
        return (Smoothed(AbsoluteQuantile(self.level), self.decay),)

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, ""]:
        """The one q, as the average stands."""
        return stats[self.needs[0]].detach()

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q."""
        return {"sat/q": float(stats[self.needs[0]])}
