"""What tokens with positive and with negative advantage contribute to a step, under every pair of clip bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from tether.core.statistics import Sofar
from tether.core.stretches import stretches
from tether.core.tokens import TokenBatch

FRACTION = float(1 << 32)
"""Sums are kept as whole numbers and, apart, as whole numbers of 2^-32: exact whatever the order."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedBounds:
    """``(low, high)``: the first pair of bounds under which ``pos >= target neg``, else the last (BAPO).

    arXiv:2510.18927. ``pos = sum over A >= 0 of min(r, high) A``, ``neg = sum over A < 0 of max(r, low) |A|`` as its
    code counts; ``live`` counts ``r |A|`` of the tokens that the bounds leave a gradient, and nothing of the others.
    The lower bound is raised first, through all of ``lows``, then the upper. Raising the lower one can only increase
    ``neg`` as the code counts it.

    One round: between two neighboring bounds all depends on the sums of ``r |A|`` and ``|A|``, so these are added up
    by the interval that r lies in.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import measure
    >>> tokens, logp = tokens_of(log_ratio=[log(1.5), log(0.9)], advantage=[1.0, -2.0])
    >>> bounds = BalancedBounds(low=(0.6, 0.8), high=(1.2, 1.6), step=0.2, target=0.75, count="code")
    >>> [round(x, 2) for x in measure([(logp, tokens)], [bounds])[bounds].tolist()]
    [0.8, 1.4]
    """

    low: tuple[float, float]
    """Where the lower bound starts, and its end."""
    high: tuple[float, float]
    """Where the upper bound starts, and its end."""
    step: float
    """By how much a bound is raised at a time; the last time by what is left."""
    target: float
    """What ``pos / neg`` shall reach."""
    count: Literal["code", "live"]
    """Clamped values of all tokens, or those with a gradient alone."""

    rounds: ClassVar[int] = 1

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Int64[Tensor, "4 bins"]:
        """Sums of ``r |A|`` and ``|A|``, whole and fraction, by interval: between upper bounds, then between lower."""
        lows, highs = self.lows(d.device), self.highs(d.device)
        table = torch.zeros(4, len(highs) + len(lows) + 2, dtype=torch.int64, device=d.device)
        for moved, advantage, counted in stretches(d.detach().float(), tokens.advantage, tokens.trainable):
            r = moved.exp()
            upper = torch.bucketize(r, highs)  # how many bounds are below r
            lower = torch.bucketize(r, lows, right=True)  # how many are at most r
            index = torch.where(advantage >= 0, upper, len(highs) + 1 + lower)
            size = torch.where(counted, advantage.abs(), 0.0).double()
            gain = torch.where(counted, size * r.double(), 0.0)
            columns = [column for x in (gain, size) for column in _limbs(x)]
            table.scatter_add_(1, index.expand(4, -1), torch.stack(columns))
        return table

    def reduce(self, parts: Sequence[Tensor]) -> Int64[Tensor, "4 bins"]:
        """Sum."""
        return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)

    def finish(self, reduced: Sofar) -> Float[Tensor, "2"]:
        """The first pair that reaches the target, else the last."""
        positive, negative = self.contributions(reduced[0])
        lows, highs = self.lows(positive.device), self.highs(positive.device)
        raised_low = torch.stack([lows, highs[:1].expand_as(lows)], dim=1)
        raised_high = torch.stack([lows[-1:].expand_as(highs), highs], dim=1)[1:]
        pos = torch.cat([positive[:1].expand_as(negative), positive[1:]])
        neg = torch.cat([negative, negative[-1:].expand_as(positive[1:])])
        reaches = pos >= self.target * neg
        reaches[-1] = True
        first = reaches.long().argmax(0, keepdim=True)
        return torch.cat([raised_low, raised_high]).index_select(0, first).squeeze(0)

    def contributions(self, table: Int64[Tensor, "4 bins"]) -> tuple[Float64[Tensor, "highs"], Float64[Tensor, "lows"]]:
        """``pos`` under every upper bound and ``neg`` under every lower one."""
        whole_gain, part_gain, whole_size, part_size = table.double()
        lows, highs = self.lows(table.device), self.highs(table.device)
        at = len(highs) + 1
        gain, size = whole_gain + part_gain / FRACTION, whole_size + part_size / FRACTION
        positive = gain[:at].cumsum(0)[:-1]  # r at most the bound
        negative = gain[at:].sum() - gain[at:].cumsum(0)[:-1]  # r at least the bound
        if self.count == "live":
            return positive, negative
        beyond = size[:at].sum() - size[:at].cumsum(0)[:-1]
        short = size[at:].cumsum(0)[:-1]
        return positive + beyond * highs.double(), negative + short * lows.double()

    def lows(self, device: torch.device) -> Float[Tensor, "lows"]:
        """Every lower bound, rising."""
        return _way(self.low, self.step, device)

    def highs(self, device: torch.device) -> Float[Tensor, "highs"]:
        """Every upper bound, rising."""
        return _way(self.high, self.step, device)


def _way(ends: tuple[float, float], step: float, device: torch.device) -> Float[Tensor, "bounds"]:
    first, last = ends
    count = math.ceil((last - first) / step - 1e-9) + 1
    # made on the device: copying a list there would wait for it
    return (first + step * torch.arange(count, dtype=torch.float64, device=device)).clamp(max=last).float()


def _limbs(x: Float64[Tensor, "T"]) -> tuple[Int64[Tensor, "T"], Int64[Tensor, "T"]]:
    """A number >= 0 as a whole number and a whole number of 2^-32."""
    whole = x.floor()
    return whole.long(), ((x - whole) * FRACTION).round().long()
