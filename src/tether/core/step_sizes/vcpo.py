"""VCPO's step size: a smaller step when few responses carry the update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.rule import Traits
from tether.core.statistics import Sofar, Statistics
from tether.core.tokens import TokenBatch, only, response_length
from tether.registry import STEP_SIZES


@final
@dataclass(frozen=True, slots=True)
class EffectiveShare:
    """``(sum w)^2 / (B sum w^2)`` over B responses, ``w = exp(d)`` at level ``product``; in [1/B, 1], 1 if B is 0.

    Every token carries the d of its response, so it counts as one of ``T_b``. Responses are never split over
    micro-batches; their sums are taken in float64, so that order matters to its rounding alone.

    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import measure
    >>> tokens, d = tokens_of(log_ratio=[0.0, 0.0, math.log(3)], advantage=[1.0] * 3, sequence=[0, 0, 1])
    >>> round(float(measure([(d.detach(), tokens)], [EffectiveShare()])[EffectiveShare()]), 4)
    0.8
    """

    clip: float | None = None
    """Largest w; ``None``: as the guard leaves it."""

    rounds: ClassVar[int] = 1

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Float64[Tensor, "3"]:
        """Number of responses, sum of w, sum of w^2."""
        most = LOG_RATIO_LIMIT if self.clip is None else min(LOG_RATIO_LIMIT, math.log(self.clip))
        w = only(tokens.trainable, d.detach()).double().clamp(-LOG_RATIO_LIMIT, most).exp()
        one = only(tokens.trainable, response_length(tokens).double().reciprocal())
        return torch.stack([one.sum(), (one * w).sum(), (one * w * w).sum()])

    def reduce(self, parts: Sequence[Tensor]) -> Float64[Tensor, "3"]:
        """Sums of sums."""
        return torch.stack(list(parts)).sum(0)

    def finish(self, reduced: Sofar) -> Float64[Tensor, ""]:
        """The share of the responses that is as good as equally weighted."""
        count, total, squares = reduced[0].unbind()
        share = total.square() / (count * squares)
        return torch.where(count > 0, share, torch.ones_like(share)).clamp(max=1.0)


@STEP_SIZES.register("vcpo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VCPO:
    """``sqrt(min(1, share / base))``: the learning rate follows the effective sample size (arXiv:2602.17616).

    ``share = (sum w)^2 / (B sum w^2)`` over the B responses of the step, ``w = pi / behavior`` of whole responses
    (level ``product``, whatever the recipe's), guarded at e^20. An update that a few responses dominate has the
    variance of a small batch, and gets its step. ``[] -> []``, float64.

    One response of four carries everything, so a quarter of the batch is effective and the rate is halved:

    >>> step_size = VCPO()
    >>> step_size(Statistics({EffectiveShare(): torch.tensor(0.25)})).item()
    0.5
    """

    base: float = 1.0
    """Share at which the rate is left as it is; below 1: that of an on-policy step, where it is known."""
    rule: Literal["sqrt", "linear"] = "sqrt"
    """How the rate follows the share."""
    clip: float | None = None
    """Largest w, as in a recipe that truncates its weights; ``None``: not clipped."""

    def __post_init__(self) -> None:
        if not 0 < self.base <= 1:
            raise ValueError(f"base of vcpo must lie in (0, 1] (1 is usual); got {self.base}")
        if self.clip is not None and not 1 <= self.clip <= 1e9:
            raise ValueError(f"clip of vcpo must lie in [1, 1e9], or be left out (as is usual); got {self.clip}")

    @property
    def traits(self) -> Traits:
        """The ratio of whole responses to the behavior policy."""
        return Traits(reads="total", level="product", needs=(EffectiveShare(self.clip),))

    def __call__(self, stats: Statistics) -> Float[Tensor, ""]:
        """The factor of this update."""
        ratio = (stats[EffectiveShare(self.clip)].detach() / self.base).clamp(max=1.0)
        return ratio.sqrt() if self.rule == "sqrt" else ratio
