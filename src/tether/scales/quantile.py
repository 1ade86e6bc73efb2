"""q as a quantile of the scope: the paper's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.statistics import AbsoluteQuantile, Statistic, Statistics
from tether.core.tokens import TokenBatch
from tether.registry import SCALES


@SCALES.register("quantile")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """``q = inf{x >= 0 : F(x) >= level}``, F the distribution of |d| over the scope (SAT Eq. 3.3, arXiv:2607.18722).

    Batch-relative: if all d double, so does q, and every contraction stays as it was. ``[T] -> []``.

    >>> import torch
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.1, -0.2], advantage=[1.0, 1.0])
    >>> Quantile()(tokens, Statistics({AbsoluteQuantile(0.9): torch.tensor(0.2)}))
    tensor(0.2000)
    """

    level: float = 0.9
    """Share of the scope's tokens that the gate leaves alone; fewer than 1 / (1 - level) tokens are never gated."""

    inputs: ClassVar[tuple[str, ...]] = ()
    is_per_token: ClassVar[bool] = False

    def __post_init__(self) -> None:
        AbsoluteQuantile(self.level)  # refuses a level outside (0, 1]

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The quantile of |d|."""
        return (AbsoluteQuantile(self.level),)

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, ""]:
        """The one q of the scope."""
        return stats[AbsoluteQuantile(self.level)].detach()

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q."""
        return {"sat/q": float(stats[AbsoluteQuantile(self.level)])}
