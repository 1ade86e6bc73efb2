"""One quantile of |d| a bin of tokens: a turn of the rollout each, or a range of staleness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from tether.core.proximal import provided
from tether.core.statistics import LOW_BITS, Sofar
from tether.core.stretches import in_stretches, stretches
from tether.core.tokens import TokenBatch

By = Literal["turn", "staleness"]
"""The field of ``TokenBatch`` that sorts tokens into bins."""
MOST_EDGES = 63
"""A bin costs 512 KiB of counts a micro-batch."""


@final
@dataclass(frozen=True, slots=True)
class BinnedQuantile:
    """``inf{x >= 0 : F_b(x) >= quantile}`` for every bin b, F_b the distribution of |d| over its trainable tokens.

    ``AbsoluteQuantile`` of every bin, to the last bit, in the same two rounds of integer counts; 0 in a bin without
    tokens. Each round holds 65,536 (then 32,768) 64-bit counts a bin and micro-batch. ``[T] -> [bins]``.

    With edges (1, 4) the bins are 0, 1 to 3, and 4 or more:

    >>> import dataclasses
    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import measure
    >>> tokens, logp = tokens_of(log_ratio=[0.1, -0.2, 0.3], advantage=[1, 1, 1])
    >>> tokens = dataclasses.replace(tokens, staleness=torch.tensor([0, 9, 0]))
    >>> by_staleness = BinnedQuantile(0.9, "staleness", edges=(1, 4))
    >>> measure([(logp.detach(), tokens)], [by_staleness])[by_staleness], by_staleness.labels
    (tensor([0.3000, 0.0000, 0.2000]), ('0', '1-3', '4+'))
    """

    quantile: float
    """Share of a bin's tokens at or below its answer, in (0, 1]."""
    by: By
    """What is binned."""
    edges: tuple[int, ...]
    """Where a new bin begins, ascending; the first begins at 0, the last has no end. None: one bin."""

    rounds: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile <= 1.0:
            raise ValueError(f"quantile must lie in (0, 1]; got {self.quantile}")
        if list(self.edges) != sorted(set(self.edges)) or min(self.edges, default=1) < 1:
            raise ValueError(f"edges of bins must be whole numbers from 1 that ascend; got {self.edges}")
        if len(self.edges) > MOST_EDGES:
            raise ValueError(f"edges of bins must be at most {MOST_EDGES}; got {len(self.edges)}")

    @property
    def labels(self) -> tuple[str, ...]:
        """The bins as ranges, in order."""
        starts = (0, *self.edges)
        closed = [
            f"{start}" if end == start + 1 else f"{start}-{end - 1}"
            for start, end in zip(starts, self.edges, strict=False)
        ]
        return (*closed, f"{starts[-1]}+")

    def bins(self, tokens: TokenBatch) -> Int64[Tensor, "T"]:
        """The bin of every token."""
        return in_stretches(self._bins, self._place_of(tokens))

    def _place_of(self, tokens: TokenBatch) -> Int[Tensor, "T"]:
        return provided(tokens.turn, "turn") if self.by == "turn" else tokens.staleness

    def _bins(self, place: Int[Tensor, "_"]) -> Int64[Tensor, "_"]:
        bins = torch.zeros_like(place, dtype=torch.int8)
        for edge in self.edges:  # not bucketize: handing it the edges waits for the device
            bins.add_(place >= edge)
        return bins.long()

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Int64[Tensor, "bins counts"]:
        """Counts of trainable |d| by bin and upper bits; then, in each bin's bucket of its answer, by lower bits."""
        bucket = self._place(sofar[0])[0].squeeze(1) if sofar else None
        size = 1 << (31 - LOW_BITS if bucket is None else LOW_BITS)
        counts = torch.zeros((len(self.edges) + 1) * size, dtype=torch.int64, device=d.device)
        for moved, place, counted in stretches(d.detach().float(), self._place_of(tokens), tokens.trainable):
            bits, bins = moved.abs().view(torch.int32), self._bins(place)
            index = bits >> LOW_BITS
            if bucket is not None:
                index, counted = bits & ((1 << LOW_BITS) - 1), counted & (index == bucket.index_select(0, bins))
            # scatter_add, not bincount or a boolean index: those wait for the device
            counts.scatter_add_(0, bins * size + index, counted.long())
        return counts.view(-1, size)

    def reduce(self, parts: Sequence[Tensor]) -> Int64[Tensor, "bins counts"]:
        """Sum of counts, one by one: stacked they would all be held twice."""
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def finish(self, reduced: Sofar) -> Float[Tensor, "bins"]:
        """Put the upper and lower bits of every bin's answer together."""
        bucket, remaining = self._place(reduced[0])
        low = torch.searchsorted(reduced[1].cumsum(1), remaining)
        bits = ((bucket << LOW_BITS) | low).squeeze(1).clamp(max=torch.iinfo(torch.int32).max)
        answer = bits.to(torch.int32).view(torch.float32)
        return torch.where(reduced[0].sum(1) > 0, answer, 0.0)

    def _place(self, counts: Int64[Tensor, "bins counts"]) -> tuple[Int64[Tensor, "bins 1"], Int64[Tensor, "bins 1"]]:
        """In each bin the bucket that holds the wanted rank, and the rank inside it."""
        total = counts.cumsum(1)
        rank = torch.ceil(self.quantile * total[:, -1:].double() - 1e-9).clamp(min=1).long()
        bucket = torch.searchsorted(total, rank).clamp(max=counts.shape[1] - 1)
        return bucket, rank - (total - counts).gather(1, bucket)
