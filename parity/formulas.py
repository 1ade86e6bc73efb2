"""What the other libraries compute where no setting of tether's gives it, written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from parity.batches import Batch

Guard = tuple[float, float] | None
HELD = (-20.0, 20.0)


@dataclass(frozen=True)
class Formula:
    """A loss by its formula."""

    of: Callable[[Batch, Tensor], Tensor]

    def loss(self, batch: Batch, logp: Tensor) -> Tensor:
        """The formula."""
        return self.of(batch, logp)


@dataclass(frozen=True)
class Clip:
    """PPO's clip with radii 0.2."""

    level: str
    aggregation: str
    guard: Guard = HELD
    """Ends of the log-ratio."""

    def loss(self, batch: Batch, logp: Tensor) -> Tensor:
        """As papers write it."""
        d = logp - batch.behavior
        if self.level == "sequence":
            d = logp - logp.detach() + mean_of_response(d, batch).detach()
        return aggregated(-gain(d if self.guard is None else d.clamp(*self.guard), batch), batch, self.aggregation)


def gain(log_ratio: Tensor, batch: Batch) -> Tensor:
    """PPO's clipped objective with radii 0.2, ``[B, T]``."""
    r = log_ratio.exp()
    return torch.minimum(r * batch.everywhere, r.clamp(0.8, 1.2) * batch.everywhere)


def mean_of_response(x: Tensor, batch: Batch) -> Tensor:
    """Mean over the tokens of a response that are trained on, ``[B, 1]``."""
    return torch.where(batch.mask, x, 0.0).sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)


def aggregated(x: Tensor, batch: Batch, aggregation: str) -> Tensor:
    """The mean over tokens, or over responses of means over tokens."""
    kept = torch.where(batch.mask, x, 0.0)
    if aggregation == "token-mean":
        return kept.sum() / batch.mask.sum()
    return mean_of_response(kept, batch).sum() / batch.mask.any(1).sum()
