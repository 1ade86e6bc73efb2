"""The running average of a policy's weights (PPO-EWMA), in numbers: what the proximal ``ewma`` is an average of.

After every update ``W <- decay W + 1`` and ``mean <- (decay W_before / W) mean + now / W``, from ``W = 1`` and
``mean = now``: the average of all weights so far, each counting ``decay`` times as much as the next, without a bias
towards the first (Hilton et al., arXiv:2110.00641).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

FIRST_WEIGHT = 1.0
"""W before the first update, and after a reset of the average to the current weights."""


def decay_of(window: int) -> float:
    """``window / (window + 2)``: the centre of mass ``decay / (1 - decay)`` is then half the window, in updates.

    >>> decay_of(8)
    0.8
    """
    return window / (window + 2)


def next_weight(weight: float, decay: float) -> float:
    """W after one more update.

    >>> next_weight(next_weight(FIRST_WEIGHT, 0.5), 0.5)
    1.75
    """
    return decay * weight + 1.0


def averaged(mean: Float[Tensor, "*N"], now: Float[Tensor, "*N"], weight: float) -> Float[Tensor, "*N"]:
    """The average with ``now`` taken in; ``weight`` is ``next_weight``'s. In the mean's precision: float32 or more.

    >>> averaged(torch.tensor([0.0]), torch.tensor([1.0]), 1.5)
    tensor([0.6667])
    """
    return torch.lerp(mean, now.to(mean), 1.0 / weight)  # decay W_before / W = 1 - 1 / W


def survivors(
    active: Bool[Tensor, "T"], advantage: Float[Tensor, "T"], trainable: Bool[Tensor, "T"]
) -> Float64[Tensor, "2"]:
    """How many trainable tokens with ``A != 0`` kept a gradient, and how many there were; sums over parts and ranks.

    Their quotient is the surviving fraction of revised PPO-EWMA (arXiv:2605.12070): ``active`` is ``LossTerms.active``,
    inside the band of the corrections and not cut by the clip. A token with ``A = 0`` never has a gradient.

    >>> yes, no = torch.tensor([True, True, False]), torch.tensor([True, True, True])
    >>> survivors(yes, torch.tensor([1.0, 0.0, -1.0]), no).tolist()
    [1.0, 2.0]
    """
    counted = trainable & (advantage != 0)
    return torch.stack([(active & counted).sum(), counted.sum()]).double()


def surviving_fraction(counts: Float64[Tensor, "2"]) -> float:
    """The quotient of summed ``survivors``; 1 where no token had an advantage (this waits for the device).

    >>> surviving_fraction(torch.tensor([1.0, 2.0], dtype=torch.float64))
    0.5
    """
    kept, all_of_them = counts.tolist()
    return kept / all_of_them if all_of_them else 1.0
