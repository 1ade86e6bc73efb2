"""Which ids truncated sampling draws among: the most probable ones, as far as top-k, top-p and min-p reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from tether.records import Truncation

ROOM: Final = 128
"""Most probable ids that a CPU looks among first; rows of which more are kept are sorted as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """A truncation for each row, where the rows are."""

    top_k: Float64[Tensor, "B"]
    """Infinite where it does not limit."""
    top_p: Float64[Tensor, "B"]
    """Infinite where it does not limit."""
    min_p: Float64[Tensor, "B"]
    is_off: Bool[Tensor, "B"]
    """Rows of which every id is kept."""
    reports: bool = False
    """Whether somebody wants to know what was kept."""

    @classmethod
    def of(cls, truncations: Sequence[Truncation], device: torch.device, *, reports: bool = False) -> Limits:
        """Those of some rows."""
        numbers = [(t.top_k or torch.inf, t.top_p if t.top_p < 1 else torch.inf, t.min_p) for t in truncations]
        top_k, top_p, min_p = torch.tensor(numbers, dtype=torch.float64).view(-1, 3).T.to(device)
        is_off = torch.tensor([t.is_none for t in truncations]).to(device)
        return cls(top_k=top_k, top_p=top_p, min_p=min_p, is_off=is_off, reports=reports)

    def at(self, rows: Int64[Tensor, "n"] | slice) -> Limits:
        """Those of some rows."""
        limits = {name: getattr(self, name)[rows] for name in ("top_k", "top_p", "min_p", "is_off")}
        return Limits(**limits, reports=self.reports)


class Kept(NamedTuple):
    """What is left of each row."""

    mask: Bool[Tensor, "B V"]
    log_mass: Float64[Tensor, "B"]
    """Log of the probability that they had together before they were renormalized."""


class Prefix(NamedTuple):
    """How far the limits reach down a row that is sorted by probability."""

    num: Int64[Tensor, "B"]
    """How many ids are kept."""
    least: Float[Tensor, "B"]
    """Log-probability of the last that is kept."""
    log_mass: Float64[Tensor, "B"]


def kept_of(logp: Float[Tensor, "B V"], limits: Limits) -> Kept:
    """The ids that are kept of ``softmax(logits / temperature)``, whose logarithm is given.

    Top-k comes first; the nucleus of top-p is of what that left, renormalized; min-p compares with the most probable.
    One id at least is kept, and none of probability 0. Of ids that are equally probable, those with the smaller numbers
    go first; so what is kept of a row depends on that row alone. Nothing waits for a GPU.

    >>> logp = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]]).log_softmax(-1)
    >>> mask, log_mass = kept_of(logp, Limits.of([Truncation(top_p=0.9)], logp.device))
    >>> mask.tolist(), round(log_mass.exp().item(), 4)
    ([[True, True, True, False, False]], 0.9567)
    """
    num, least, log_mass = prefix_of(logp, limits)
    mask = logp >= least[:, None]
    if logp.device.type != "cpu" or bool((mask.count_nonzero(-1) != num).any()):
        equal = logp == least[:, None]
        room = num - (logp > least[:, None]).sum(-1)
        mask = mask & ~(equal & (equal.cumsum(-1) > room[:, None]))
    return Kept(mask | limits.is_off[:, None], log_mass)


def prefix_of(logp: Float[Tensor, "B V"], limits: Limits) -> Prefix:
    """How many of the most probable ids are kept, and what they weigh; all, weighing 1, of a row without limits."""
    if logp.device.type != "cpu" or logp.shape[-1] <= ROOM:
        return _prefix(logp.sort(dim=-1, descending=True).values, limits)
    found = _prefix(logp.topk(ROOM, dim=-1).values, limits)
    is_far = limits.top_k.isfinite() & (limits.top_k > ROOM) & limits.top_p.isfinite()  # what they weigh is not known
    rows = (((found.num == ROOM) & ~limits.is_off) | is_far).nonzero()[:, 0]
    if not len(rows):
        return found
    # numpy sorts three times as fast as torch on a CPU
    rest = _prefix(torch.from_numpy(-np.sort(-logp[rows].numpy(), axis=-1)), limits.at(rows))
    return Prefix(*(whole.index_copy(0, rows, part) for whole, part in zip(found, rest, strict=True)))


def _prefix(top: Tensor, limits: Limits) -> Prefix:
    """``prefix_of`` among the most probable, sorted. Sums run down the row, however many there are."""
    first = top[:, :1].double()
    weight = (top.double() - first).exp()
    total = weight.cumsum(-1)
    before = pad(total[:, :-1], (1, 0))
    left = torch.where(limits.top_k.isinf(), (-first).exp()[:, 0], _weight_of(total, limits.top_k))
    is_kept = (before < (limits.top_p * left)[:, None]) & (weight >= limits.min_p[:, None]) & (top.exp() > 0)
    is_kept &= torch.arange(top.shape[-1], device=top.device) < limits.top_k[:, None]
    num = is_kept.sum(-1).clamp(min=1)
    last = (num - 1)[:, None]
    log_mass = (first + total.gather(-1, last).log())[:, 0].masked_fill(limits.is_off, 0.0)
    return Prefix(num, top.gather(-1, last)[:, 0], log_mass)


def _weight_of(total: Tensor, top_k: Tensor) -> Tensor:
    """Of the first ``top_k`` of each row."""
    last = top_k.clamp(1, total.shape[-1]).long() - 1
    return total.gather(-1, last[:, None])[:, 0]
