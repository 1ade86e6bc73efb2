"""Numbers about a whole optimizer step, computed in pieces.

A step's tokens are spread over micro-batches and ranks. A number taken per micro-batch changes when the split does,
so a rule may not compute one: it names what it needs, ``measure`` supplies it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from tether.core.stretches import stretches
from tether.core.tokens import TokenBatch

Scope = Literal["step", "lagged", "rank", "micro-batch"]
"""Over which tokens a statistic runs. ``step``: all micro-batches and ranks of one update; ``lagged``: those of the
update before, so that no extra forward pass is needed; ``rank``: all micro-batches of one rank."""

Sofar = tuple[Tensor, ...]
Part = tuple[Float[Tensor, "_"], TokenBatch]
Gather = Callable[[Tensor], Sequence[Tensor]]
"""Gives every rank's share for this rank's: an all-gather."""


@runtime_checkable
class Statistic(Protocol):
    """A number about the log-ratios d of a scope. Frozen, hence its own key.

    Law (tests/laws): any split of the tokens over micro-batches and ranks, in any order, gives the same answer.
    """

    @property
    def rounds(self) -> int:
        """How many passes over the parts it takes; each sees the reduced results of those before."""
        ...

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Tensor:
        """One micro-batch's share in this round."""
        ...

    def reduce(self, parts: Sequence[Tensor]) -> Tensor:
        """Join shares: the same operation for micro-batches and for ranks."""
        ...

    def finish(self, reduced: Sofar) -> Tensor:
        """The answer, on the device (no sync): one number, several, or a table."""
        ...


LOW_BITS = 15
"""A non-negative float32 has 31 bits; the first round counts the upper 16, the second the lower 15."""


@final
@dataclass(frozen=True, slots=True)
class AbsoluteQuantile:
    """``inf{x >= 0 : F(x) >= quantile}`` with F the distribution of |d| over trainable tokens; 0 if there are none.

    The ``ceil(quantile * N - 1e-9)``-th smallest value (SAT Eq. 3.3, arXiv:2607.18722), exact to the last bit for any
    N. Non-negative float32 numbers sort like their bit patterns, so two rounds of integer counts find it: constant
    memory, and sums of integers do not depend on order. ``torch.quantile`` interpolates and refuses more than 2^24
    elements.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0, .01, -.02, .03, -.05, .06, -.08, .10, -.15, .18], advantage=[1] * 10)
    >>> round(float(measure([(logp.detach(), tokens)], [AbsoluteQuantile(0.9)])[AbsoluteQuantile(0.9)]), 6)
    0.15
    """

    quantile: float = 0.9
    """Share of the tokens at or below the answer, in (0, 1]."""

    rounds: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0.0 < self.quantile <= 1.0:
            raise ValueError(f"quantile must lie in (0, 1]; got {self.quantile}")

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Int64[Tensor, "bins"]:
        """Counts of trainable |d| by their upper bits; then, inside the bucket of the answer, by their lower bits."""
        bucket = self.bucket(sofar[0]) if sofar else None
        counts = self.no_counts(d.device, bucket)
        for piece, trainable in stretches(d.detach(), tokens.trainable):
            self.count(piece.float().abs(), trainable.int(), counts, bucket)
        return counts.long()

    def bucket(self, counts: Int64[Tensor, "bins"]) -> Int32[Tensor, "1"]:
        """The upper bits of the answer, after the first round."""
        return self._place(counts)[0].int()

    def no_counts(self, device: torch.device, bucket: Int32[Tensor, "1"] | None) -> Int32[Tensor, "bins"]:
        """What a micro-batch is counted in; ``bucket`` from the second round on."""
        return torch.zeros(1 << (31 - LOW_BITS if bucket is None else LOW_BITS), dtype=torch.int32, device=device)

    def count(
        self,
        distance: Float[Tensor, "T"],
        counted: Int32[Tensor, "T"],
        counts: Int32[Tensor, "bins"],
        bucket: Int32[Tensor, "1"] | None,
    ) -> None:
        """Add a stretch of it, ``|d|`` in float32, where ``counted`` is 1 and not 0."""
        bits = distance.view(torch.int32)
        index = bits >> LOW_BITS
        if bucket is not None:
            # 32 bits wide: a comparison whose result is as wide as its operands takes a third of the time
            counted = counted & torch.eq(index, bucket, out=torch.empty_like(index))
            index = bits & ((1 << LOW_BITS) - 1)
        # scatter_add, not bincount or a boolean index: those wait for the device
        counts.scatter_add_(0, index.long(), counted)

    def reduce(self, parts: Sequence[Tensor]) -> Int64[Tensor, "bins"]:
        """Sum of counts."""
        return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)

    def finish(self, reduced: Sofar) -> Float[Tensor, ""]:
        """Put the upper and lower bits of the answer together."""
        bucket, remaining = self._place(reduced[0])
        low = torch.searchsorted(reduced[1].cumsum(0), remaining)
        bits = (bucket << LOW_BITS) | low
        answer = bits.clamp(max=torch.iinfo(torch.int32).max).to(torch.int32).view(torch.float32)
        return torch.where(reduced[0].sum() > 0, answer, torch.zeros_like(answer)).squeeze()

    def _place(self, counts: Int64[Tensor, "bins"]) -> tuple[Int64[Tensor, "1"], Int64[Tensor, "1"]]:
        """The bucket that holds the wanted rank, and the rank inside it."""
        total = counts.cumsum(0)
        rank = torch.ceil(self.quantile * total[-1:].double() - 1e-9).clamp(min=1).long()
        bucket = torch.searchsorted(total, rank).clamp(max=len(counts) - 1)
        return bucket, rank - (total[bucket] - counts[bucket])


@dataclass(frozen=True, slots=True)
class Statistics:
    """What was measured over a scope, keyed by the statistic itself."""

    values: Mapping[Statistic, Tensor]

    def __getitem__(self, statistic: Statistic) -> Tensor:
        try:
            return self.values[statistic]
        except KeyError:
            measured = ", ".join(map(str, self.values)) or "nothing"
            raise KeyError(
                f"{statistic} was not measured (measured: {measured}); list it in the rule's `needs`"
            ) from None


def measure(
    parts: Sequence[Part],
    needs: Iterable[Statistic],
    across: Gather | None = None,
) -> Statistics:
    """Measure ``needs`` over all parts of a scope, and over all ranks through ``across`` (an all-gather).

    Args:
        parts: ``(d, tokens)`` of every micro-batch, at least one (it may hold no trainable token).
        needs: the statistics; duplicates are measured once.
        across: the all-gather over ranks; absent on one rank.
    """
    values: dict[Statistic, Tensor] = {}
    for statistic in dict.fromkeys(needs):
        reduced: Sofar = ()
        for _ in range(statistic.rounds):
            here = statistic.reduce([statistic.local(d, tokens, reduced) for d, tokens in parts])
            reduced = (*reduced, statistic.reduce(across(here)) if across else here)
        values[statistic] = statistic.finish(reduced)
    return Statistics(values)
