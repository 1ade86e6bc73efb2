"""Up to which |d| the second moment of the log-ratios stays within a budget: what M2PO bounds a step by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.statistics import LOW_BITS, Sofar
from tether.core.stretches import stretches
from tether.core.tokens import TokenBatch

FIXED = float(1 << 24)
"""d^2 is summed as a whole number of 2^-24: exact whatever the order, up to 10^9 tokens at the guard."""
MOST_BITS = int(torch.tensor(LOG_RATIO_LIMIT).view(torch.int32))
"""The guard as a float32 bit pattern: |d| ends there."""
LEAST_BUDGET = 1e-6
"""Some sixteen times the fixed point; below, its rounding would decide."""
MOST_BUDGET = LOG_RATIO_LIMIT**2
"""A budget that nothing exceeds."""


class _Place(NamedTuple):
    """Where the budget is crossed: a bucket of |d|, and what lies below it; all ``[1]``."""

    bucket: Int64[Tensor, "1"]
    before: Int64[Tensor, "1"]
    """The last bucket below that holds a token, or -1."""
    num_below: Int64[Tensor, "1"]
    sum_below: Int64[Tensor, "1"]
    """Of d^2, in fixed point."""
    num: Int64[Tensor, "1"]
    """All tokens."""
    is_within: Bool[Tensor, "1"]
    """True if the budget holds as it is."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SecondMomentLimit:
    """The largest value x of |d| for which a second moment stays within ``budget``; infinite if it does as it is.

    ``capped`` (M2PO, arXiv:2510.01161): ``mean min(d^2, x^2) <= budget`` over the tokens H that have moved away from
    the data, ``A > 0, d > 0`` or ``A < 0, d < 0``; 0 if not even their smallest satisfies it. ``kept`` (AReaL's form):
    the mean of the ``d^2 <= x^2`` is ``< budget``, over all tokens; the smallest |d| if none satisfies it. Tokens that
    share a value stand and fall together.

    No sort: the first round counts tokens and sums d^2 by the upper bits of |d|, which finds the bucket in which the
    budget is crossed; the second counts by the lower bits inside it and inside the last bucket with a token before,
    whose largest value is the answer if the crossing comes first. Whole numbers only, so no order matters.

    Of three capped at 0.2, ``(.01 + .04 + .04) / 3 <= .04``; at 0.6 it would be .137:

    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import measure
    >>> tokens, logp = tokens_of(log_ratio=[0.1, 0.2, 0.6], advantage=[1.0, 1.0, 1.0])
    >>> limit = SecondMomentLimit(budget=0.04, of="capped")
    >>> measure([(logp, tokens)], [limit])[limit]
    tensor(0.2000)
    """

    budget: float
    """Of the second moment, in nats squared."""
    of: Literal["capped", "kept"]
    """What happens to tokens beyond: their d^2 counts as x^2, or not at all."""

    rounds: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not LEAST_BUDGET <= self.budget <= MOST_BUDGET:
            raise ValueError(
                f"budget of a second moment must lie in [{LEAST_BUDGET:g}, {MOST_BUDGET:g}] (0.04 is usual); got "
                f"{self.budget}"
            )

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Int64[Tensor, "2 bins"]:
        """Number and sum of d^2 by upper bits; then the numbers by lower bits inside the two buckets that matter."""
        place = self._place(sofar[0]) if sofar else None
        table = torch.zeros(2, 1 << (31 - LOW_BITS if place is None else LOW_BITS), dtype=torch.int64, device=d.device)
        for moved, advantage, counted in stretches(d.detach().float(), tokens.advantage, tokens.trainable):
            if self.of == "capped":
                counted = counted & (((moved > 0) & (advantage > 0)) | ((moved < 0) & (advantage < 0)))
            bits = moved.abs().view(torch.int32).clamp(max=MOST_BITS).long()
            high, low = bits >> LOW_BITS, bits & ((1 << LOW_BITS) - 1)
            if place is None:
                index, columns = high, [counted.long(), _fixed(bits) * counted]
            else:
                index, columns = low, [(counted & (high == x)).long() for x in (place.bucket, place.before)]
            for row, column in zip(table, columns, strict=True):
                row.scatter_add_(0, index, column)
        return table

    def reduce(self, parts: Sequence[Tensor]) -> Int64[Tensor, "2 bins"]:
        """Sum."""
        return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)

    def finish(self, reduced: Sofar) -> Float[Tensor, ""]:
        """The last value inside the bucket of the crossing that satisfies the budget, else the last before it."""
        place, (counts, before) = self._place(reduced[0]), reduced[1]
        low = torch.arange(1 << LOW_BITS, device=counts.device)
        bits = (place.bucket << LOW_BITS) | low
        square = _fixed(bits)
        num, total = place.num_below + counts.cumsum(0), place.sum_below + (counts * square).cumsum(0)
        if self.of == "capped":
            satisfied = total + (place.num - num) * square <= self._most(place.num)
        else:
            satisfied = total < self._most(num)
        last = torch.where(satisfied & (counts > 0), bits, -1).amax(0, keepdim=True)
        last = torch.maximum(last, torch.where(before > 0, (place.before << LOW_BITS) | low, -1).amax(0, keepdim=True))
        if self.of == "capped":
            fallback = torch.zeros_like(last)
        else:
            fallback = torch.where(counts > 0, bits, MOST_BITS).amin(0, keepdim=True)
        answer = _value(torch.where(last < 0, fallback, last))
        return torch.where(place.is_within, torch.full_like(answer, math.inf), answer).squeeze()

    def _most(self, num: Int64[Tensor, "*bins"]) -> Int64[Tensor, "*bins"]:
        """The budget of that many tokens, in fixed point."""
        return (self.budget * FIXED * num.double()).long()

    def _place(self, table: Int64[Tensor, "2 bins"]) -> _Place:
        """The bucket where the budget is crossed, from the table of the first round."""
        counts, squares = table
        num, total = counts.cumsum(0), squares.cumsum(0)
        everyone, budget = num[-1:], self._most(num[-1:])
        buckets = torch.arange(len(counts), device=counts.device)
        num_below, sum_below = num - counts, total - squares
        if self.of == "capped":  # at the smallest value a bucket can hold; that of bucket 0 is 0, which satisfies
            edge = _fixed((buckets << LOW_BITS).clamp(max=MOST_BITS))
            bucket = (sum_below + (everyone - num_below) * edge <= budget).sum(0, keepdim=True) - 1
            is_within = total[-1:] <= budget
        else:  # as a whole; the first that does not satisfy
            bucket = ((num == 0) | (total < self._most(num))).sum(0, keepdim=True).clamp(max=len(counts) - 1)
            is_within = (total[-1:] < budget) | (everyone == 0)
        before = torch.where((buckets < bucket) & (counts > 0), buckets, -1).amax(0, keepdim=True)
        return _Place(bucket, before, num_below[bucket], sum_below[bucket], everyone, is_within)


def _value(bits: Int64[Tensor, "*bins"]) -> Float[Tensor, "*bins"]:
    return bits.to(torch.int32).view(torch.float32)


def _fixed(bits: Int64[Tensor, "*bins"]) -> Int64[Tensor, "*bins"]:
    """d^2 in fixed point, from the bits of |d|, at most at the guard."""
    return (_value(bits.clamp(max=MOST_BITS)).double().square() * FIXED).round().long()
