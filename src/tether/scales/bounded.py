"""q as a quantile of the scope, held between two numbers (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.statistics import AbsoluteQuantile, Statistic, Statistics
from tether.core.tokens import TokenBatch
from tether.registry import SCALES


@SCALES.register("bounded")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Bounded:
    """The quantile of |d|, held in ``[floor, ceiling]`` (ours, not in the paper); 0 stays 0. ``[T] -> []``.

    The floor leaves batches alone that are almost on-policy, where the largest tenth of |d| is still small. The ceiling
    keeps SAT at work when all mismatch has grown: a quantile beyond PPO's own limit, 0.18 nats at radius 0.2, gates
    only tokens that PPO cuts anyway. Below the ceiling q is batch-relative as the paper's is. A quantile of 0 gates
    nothing there and stays as it is, so that a floor never gates a token that the quantile alone leaves.

    >>> import torch
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.1, -0.2], advantage=[1.0, 1.0])
    >>> Bounded(floor=0.01, ceiling=0.1)(tokens, Statistics({AbsoluteQuantile(0.9): torch.tensor(0.2)}))
    tensor(0.1000)
    """

    level: float = 0.9
    """Share of the scope's tokens that the quantile leaves alone."""
    floor: float = 0.01
    """Smallest q in nats, 0 for none."""
    ceiling: float = 0.1
    """Largest q in nats; where it holds, more than ``1 - level`` of the tokens are gated."""

    inputs: ClassVar[tuple[str, ...]] = ()
    is_per_token: ClassVar[bool] = False

    def __post_init__(self) -> None:
        AbsoluteQuantile(self.level)  # refuses a level outside (0, 1]
        if not 0 <= self.floor <= LOG_RATIO_LIMIT:
            raise ValueError(
                f"floor of the bounded scale must lie in [0, {LOG_RATIO_LIMIT:g}] nats (0.01 is usual); "
                f"got {self.floor}"
            )
        if not max(self.floor, 1e-9) <= self.ceiling <= LOG_RATIO_LIMIT:
            raise ValueError(
                f"ceiling of the bounded scale must be above 0, at least floor and at most {LOG_RATIO_LIMIT:g} nats "
                f"(0.1 is usual); got {self.ceiling} with floor {self.floor}"
            )

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The quantile of |d|."""
        return (AbsoluteQuantile(self.level),)

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, ""]:
        """The one q of the scope."""
        return self._bounded(stats)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q as it is used."""
        return {"sat/q": float(self._bounded(stats))}

    def _bounded(self, stats: Statistics) -> Float[Tensor, ""]:
        q = stats[AbsoluteQuantile(self.level)].detach()
        return torch.where(q > 0, q.clamp(self.floor, self.ceiling), q)
