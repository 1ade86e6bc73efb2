"""What became of the tokens? Kept, clipped by the rule, or masked by a correction; by staleness and by turn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor

from tether.core.mismatch import LOW_PROBABILITY
from tether.core.seen import Labels, Seen, Tables, bits_of, count_of, masked
from tether.core.tally import empty_tally, places, totals
from tether.records import Metric, Metrics

FATES: Final = ("kept", "clipped", "masked")
"""``kept``: has a gradient; ``clipped``: the rule denies it one, whatever corrections say; ``masked``: the rule would
leave it one, and a correction's weight is 0."""
SIDES: Final = ("positive/outward", "positive/pull_back", "negative/outward", "negative/pull_back", "zero")
"""Sign of the advantage, and whether the token has moved away from the data, ``A (r - 1) > 0``; a token that has not
moved counts as ``pull_back``. Without an advantage there is no direction."""
CODES: Final = len(FATES) * len(SIDES)
"""``5 fate + side``."""
FLAGS: Final = (4, 2, 2, 2, 2)
"""A byte a token: sign of the advantage (0, 1, 3: zero, positive, negative), outward, trainable, clipped, active."""
NUM_FLAGS: Final = 64


@dataclass(frozen=True, slots=True)
class Fates:
    """Shares of fate, sign and direction, and counts of each fate at every staleness.

    ``fate/<fate>/<side>`` are shares of trainable tokens and sum to 1; ``fate/<fate>/by_staleness`` are counts by
    label: divide by ``staleness/histogram``.
    ``clip/fraction`` is the share of tokens without a gradient, ``clip/outward_fraction`` that of those among them that
    had moved outward.
    """

    labels: Labels
    """The staleness that tokens of the step have."""

    def tables(self, device: torch.device) -> Tables:
        """Of tokens by staleness and flags."""
        return (empty_tally(self.labels.size * NUM_FLAGS, torch.int32, device),)

    def add(self, seen: Seen, tables: Tables) -> None:
        """One cell a token."""
        _count(tables[0], seen, seen.staleness)

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """Counts by staleness and code."""
        return _counts(tables[0])

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
            **_by_label(self.labels, sums, "staleness", ()),
        }


@dataclass(frozen=True, slots=True)
class Turns:
    """Counts of each fate, and sums that tell how mismatch grows, at every assistant turn.

    ``mismatch/<sum>_sum_by_turn``, of ``|d|``, of ``k3 = e^d - 1 - d`` and of tokens whose current probability is below
    1e-3: divide by ``turn/histogram``.
    """

    labels: Labels
    """The turns that tokens of the step belong to."""

    def tables(self, device: torch.device) -> Tables:
        """Of tokens by turn and flags, then the three sums by turn."""
        sums = (empty_tally(self.labels.size, torch.float64, device) for _ in range(3))
        return (empty_tally(self.labels.size * NUM_FLAGS, torch.int32, device), *sums)

    def add(self, seen: Seen, tables: Tables) -> None:
        """One cell of each a token."""
        assert seen.turn is not None, "turns are asked for only where every micro-batch has them"
        bins = self.labels.bins(seen.turn)
        _count(tables[0], seen, bins)
        place = places(bins, seen.lanes)
        low = (seen.logp < math.log(LOW_PROBABILITY)).double()
        for table, values in zip(tables[1:], (seen.moved, seen.gain.double() - seen.d, low), strict=True):
            table.scatter_add_(0, place, values)

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """Counts by turn and code, then the sums."""
        return torch.cat([_counts(tables[0]), *(totals(table) for table in tables[1:])])

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

    def tables(self, device: torch.device) -> Tables:
        """A number, and a pair for each."""
        return (torch.zeros(1 + 2 * (len(self.marks) + len(self.corrections)), dtype=torch.float64, device=device),)

    def add(self, seen: Seen, tables: Tables) -> None:
        """The number of tokens, and a pair of sums for each."""
        sums = [count_of(seen.trainable)]
        for name in self.marks:
            value, among = seen.marks[name]
            is_share = value.dtype == torch.bool
            total = count_of(value & among) if is_share else _sum_of(masked(value, bits_of(among)))
            sums += [total, count_of(among)]
        for name in self.corrections:
            weight = masked(seen.weights[name], seen.bits)
            sums += [_sum_of(weight), count_of(weight == 0) - count_of(~seen.trainable)]
        tables[0].add_(torch.stack(sums))

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """As they are."""
        return tables[0]

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


def _sum_of(x: Float[Tensor, "T"]) -> Float64[Tensor, ""]:
    return x.sum(dtype=torch.float64)


def _count(tally: Int32[Tensor, "K"], seen: Seen, bins: Int32[Tensor, "T"]) -> None:
    """Add every token at ``64 bin + flags``."""
    # sums of bytes: thirty-two of them are added at once
    active, clipped, outward = (x.view(torch.uint8) for x in seen.fates)
    sign = seen.advantage.sign().to(torch.int8).view(torch.uint8).bitwise_and_(3)
    flags = torch.add(active, clipped, alpha=2).add_(seen.trainable.view(torch.uint8), alpha=4)
    flags.add_(outward, alpha=8).add_(sign, alpha=16)
    place = places(flags.int().add_(bins, alpha=NUM_FLAGS), seen.lanes)
    tally.scatter_add_(0, place, torch.ones_like(bins))


def _counts(tally: Int32[Tensor, "slots"]) -> Float64[Tensor, "K"]:
    """Trainable tokens by label and code, from the tally by label and flags."""
    table = totals(tally).view(-1, *FLAGS)[:, :, :, 1]
    fates = torch.stack([table[..., 0, 1], table[..., 1, :].sum(-1), table[..., 0, 0]], 1)  # [labels, 3, 4, 2]
    zero, positive, _, negative = fates.unbind(2)
    moved = torch.cat([positive.flip(-1), negative.flip(-1), zero.sum(-1, keepdim=True)], -1)
    return moved.flatten()


def _rows(labels: Labels, sums: Sequence[float]) -> list[Sequence[float]]:
    """The counts of every label, by code."""
    return [sums[i * CODES : (i + 1) * CODES] for i in range(labels.size)]


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
            start = size * (CODES + k)
            yield f"mismatch/{name}_sum_by_{kind}", histogram(sums[start : start + size])

    return dict(histograms())
