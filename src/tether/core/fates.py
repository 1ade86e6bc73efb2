"""What became of the tokens? Kept, clipped by the rule, or masked by a correction; by staleness and by turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Float64, Int64, UInt8
from torch import Tensor

from tether.core.loss import LossTerms
from tether.core.mismatch import LOW_PROBABILITY
from tether.core.seen import Labels, Seen
from tether.core.tokens import TokenBatch, only
from tether.records import Metric, Metrics

FATES: Final = ("kept", "clipped", "masked")
"""``kept``: has a gradient; ``clipped``: the rule denies it one, whatever corrections say; ``masked``: the rule would
leave it one, and a correction's weight is 0."""
SIDES: Final = ("positive/outward", "positive/pull_back", "negative/outward", "negative/pull_back", "zero")
"""Sign of the advantage, and whether the token has moved away from the data, ``A (r - 1) > 0``; a token that has not
moved counts as ``pull_back``. Without an advantage there is no direction."""
CODES: Final = len(FATES) * len(SIDES)
"""``5 fate + side``."""
SLOTS: Final = CODES + len(SIDES)
"""The codes, and a place for untrainable tokens."""


@dataclass(frozen=True, slots=True)
class Fates:
    """Shares of fate, sign and direction, and counts of each fate at every staleness.

    ``fate/<fate>/<side>`` are shares of trainable tokens and sum to 1; ``fate/<fate>/by_staleness`` and
    ``mismatch/abs_sum_by_staleness`` (the sum of ``|d|``) are sums by label: divide by ``staleness/histogram``.
    ``clip/fraction`` is the share of tokens without a gradient, ``clip/outward_fraction`` that of those among them that
    had moved outward.
    """

    labels: Labels
    """The staleness that tokens of the step have."""

    def share(self, seen: Seen) -> Float64[Tensor, "K"]:
        """Counts by staleness and code, then sums of ``|d|`` by staleness."""
        bins = self.labels.bins(seen.tokens.staleness.long())
        counts = _counts(bins, _codes(seen.terms, seen.tokens), self.labels.size)
        moved = _sums(bins, seen.distance, self.labels.size)
        return torch.cat([counts, moved])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """``fate/``, ``clip/`` and ``staleness/``."""
        rows = _rows(self.labels, sums)
        by_code = [sum(counts) for counts in zip(*rows, strict=True)]
        n = sum(by_code)
        sides = len(SIDES)
        stale = sum((self.labels.low + i) * sum(row) for i, row in enumerate(rows))
        metrics = {
            f"fate/{fate}/{side}": Metric(by_code[i * sides + j] / n, "mean", n)
            for i, fate in enumerate(FATES)
            for j, side in enumerate(SIDES)
        }
        denied = by_code[sides:]
        outward = sum(count for j, count in enumerate(denied) if SIDES[j % sides].endswith("outward"))
        return {
            **metrics,
            "clip/fraction": Metric(sum(denied) / n, "mean", n),
            "clip/outward_fraction": Metric(outward / n, "mean", n),
            "staleness/mean": Metric(stale / n, "mean", n),
            "staleness/max": Metric(float(self.labels.high), "max", n),
            **_by_label(self.labels, sums, "staleness", ("abs",)),
        }


@dataclass(frozen=True, slots=True)
class Turns:
    """Counts of each fate, and sums that tell how mismatch grows, at every assistant turn.

    ``mismatch/<sum>_sum_by_turn``, of ``|d|``, of ``k3 = e^d - 1 - d`` and of tokens whose current probability is below
    1e-3: divide by ``turn/histogram``.
    """

    labels: Labels
    """The turns that tokens of the step belong to."""

    def share(self, seen: Seen) -> Float64[Tensor, "K"]:
        """Counts by turn and code, then the three sums by turn."""
        assert seen.tokens.turn is not None, "turns are asked for only where every micro-batch has them"
        bins = self.labels.bins(seen.tokens.turn.long())
        low = (seen.logp.exp() < LOW_PROBABILITY).double()
        sums = [_sums(bins, x, self.labels.size) for x in (seen.distance, seen.gain - seen.d, low)]
        return torch.cat([_counts(bins, _codes(seen.terms, seen.tokens), self.labels.size), *sums])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """``turn/``, and ``by_turn`` of ``fate/`` and ``mismatch/``."""
        return _by_label(self.labels, sums, "turn", ("abs", "k3", "low_prob"))


@dataclass(frozen=True, slots=True)
class Factors:
    """What the rule marks, each averaged over the tokens it names; and every correction's weight.

    ``correction/<name>/mean_weight`` and ``correction/<name>/zero_fraction`` are over all trainable tokens.
    """

    marks: tuple[str, ...]
    """Metric names of the rule's readings."""
    corrections: tuple[str, ...]
    """Names of the corrections."""

    def share(self, seen: Seen) -> Float64[Tensor, "K"]:
        """A pair of sums for each, and the number of tokens."""
        sums = [torch.count_nonzero(seen.trainable)]
        for name in self.marks:
            value, among = seen.terms.marks[name]
            held = value & among if value.dtype == torch.bool else only(among, value)
            sums += [held.sum(dtype=torch.float64), torch.count_nonzero(among)]
        for name in self.corrections:
            weight = seen.terms.weights[name]
            sums += [only(seen.trainable, weight).sum(dtype=torch.float64)]
            sums += [torch.count_nonzero((weight == 0) & seen.trainable)]
        return torch.stack([x.double() for x in sums])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """Marks that no token carries are left out."""
        n, pairs = sums[0], list(zip(sums[1::2], sums[2::2], strict=True))
        marks = dict(zip(self.marks, pairs[: len(self.marks)], strict=True))
        weights = dict(zip(self.corrections, pairs[len(self.marks) :], strict=True))
        return {
            **{name: Metric(total / count, "mean", count) for name, (total, count) in marks.items() if count},
            **{f"correction/{name}/mean_weight": Metric(w / n, "mean", n) for name, (w, _) in weights.items()},
            **{f"correction/{name}/zero_fraction": Metric(z / n, "mean", n) for name, (_, z) in weights.items()},
        }


def _codes(terms: LossTerms, tokens: TokenBatch) -> UInt8[Tensor, "T"]:
    """``5 fate + side`` of every token; from ``CODES`` on for untrainable ones."""
    # sums of bytes: a select of a byte by a random mask takes fifty times as long as an addition
    masked = tokens.trainable & ~(terms.active | terms.clipped)
    negative = tokens.advantage < 0
    zero = ~(negative | (tokens.advantage > 0))
    side = 2 * negative.byte() + (~terms.outward).byte() + 3 * zero.byte()
    return side + 5 * terms.clipped.byte() + 10 * masked.byte() + CODES * (~tokens.trainable).byte()


def _counts(bins: Int64[Tensor, "T"], codes: UInt8[Tensor, "T"], size: int) -> Float64[Tensor, "K"]:
    # scatter_add, not bincount: that waits for the device
    index = bins * SLOTS + codes
    table = torch.zeros(size * SLOTS, dtype=torch.int64, device=index.device)
    return table.scatter_add_(0, index, torch.ones_like(index)).double()


def _sums(bins: Int64[Tensor, "T"], values: Float64[Tensor, "T"], size: int) -> Float64[Tensor, "K"]:
    return values.new_zeros(size).scatter_add_(0, bins, values)


def _rows(labels: Labels, sums: Sequence[float]) -> list[Sequence[float]]:
    """The counts of every label, by code, untrainable tokens left out."""
    return [sums[i * SLOTS : i * SLOTS + CODES] for i in range(labels.size)]


Kind = Literal["staleness", "turn"]


def _by_label(labels: Labels, sums: Sequence[float], kind: Kind, names: Sequence[str]) -> Metrics:
    """Counts by label and code, and after them other sums by label, as histograms; labels without a token left out."""
    size, rows = labels.size, _rows(labels, sums)
    held = [(i, name) for i, name in enumerate(labels.names()) if sum(rows[i])]
    n = sum(sum(row) for row in rows)

    def histogram(values: Sequence[float]) -> Metric:
        return Metric({name: values[i] for i, name in held}, "sum", n)

    def histograms() -> Iterator[tuple[str, Metric]]:
        yield f"{kind}/histogram", histogram([sum(row) for row in rows])
        for k, fate in enumerate(FATES):
            mine = slice(k * len(SIDES), (k + 1) * len(SIDES))
            yield f"fate/{fate}/by_{kind}", histogram([sum(row[mine]) for row in rows])
        for k, name in enumerate(names):
            start = size * (SLOTS + k)
            yield f"mismatch/{name}_sum_by_{kind}", histogram(sums[start : start + size])

    return dict(histograms())
