"""What the measures of a step look at: its tokens, a stretch at a time, and the labels they are sorted under."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Float64, Int, Int32, Int64
from torch import Tensor

from tether.core.loss import LossTerms
from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.rule import Mark
from tether.core.statistics import Gather
from tether.core.stretches import stretches
from tether.core.tally import lanes
from tether.core.tokens import TokenBatch
from tether.records import Metrics

HIGHEST: Final = 2**31 - 1
"""No staleness or turn lies above."""


class Labels(NamedTuple):
    """The consecutive integers ``low .. high`` that tokens of a step have as staleness, or as turn."""

    low: int
    high: int

    @property
    def size(self) -> int:
        """How many there are."""
        return self.high - self.low + 1

    def names(self) -> list[str]:
        """Every label.

        >>> Labels(8, 10).names()
        ['8', '9', '10']
        """
        return [str(label) for label in range(self.low, self.high + 1)]

    def bins(self, values: Int[Tensor, "T"]) -> Int32[Tensor, "T"]:
        """The bin of every value, ``[T]``; of an untrainable token any."""
        if self.size == 1:
            return torch.zeros_like(values, dtype=torch.int32)
        return values.int().sub(self.low).clamp_(0, self.size - 1)


class Spans(NamedTuple):
    """How far the integers of a step's tokens reach: what sizes the tables of every other measure."""

    staleness: Labels | None
    """Of trainable tokens; ``None`` if there are none."""
    turn: Labels | None
    """Likewise; also ``None`` where turns are not told apart."""
    responses: int
    """No micro-batch has more."""


def spans(tokens: Sequence[TokenBatch], across: Gather | None = None) -> Spans:
    """Smallest and largest staleness and turn of a step's trainable tokens, over all ranks; one wait for the device.

    >>> from tether.core.examples import tokens_of
    >>> spans([tokens_of(log_ratio=[0.1, 0.2], advantage=[1.0, 1.0], stale=3)[0]])
    Spans(staleness=Labels(low=3, high=3), turn=None, responses=2)
    """
    everything = torch.stack([_ends(t) for t in tokens]).amax(0)
    if across is not None:
        everything = torch.stack(list(across(everything))).amax(0)
    *ends, responses = everything.tolist()
    staleness, turn = (
        Labels(HIGHEST - below, above - 1) if above else None
        for above, below in zip(ends[::2], ends[1::2], strict=True)
    )
    return Spans(staleness, turn, responses)


def _ends(tokens: TokenBatch) -> Int64[Tensor, "5"]:
    """1 + the largest staleness, ``HIGHEST`` - the smallest, of turns the same, and 1 + the largest response id."""
    nothing = torch.zeros(5, dtype=torch.int64, device=tokens.staleness.device)
    if not len(tokens):
        return nothing
    turn = nothing[:2] if tokens.turn is None else _extremes(tokens.turn, tokens.trainable)
    return torch.cat([_extremes(tokens.staleness, tokens.trainable), turn, tokens.sequence.amax().long()[None] + 1])


def _extremes(values: Int[Tensor, "T"], trainable: Bool[Tensor, "T"]) -> Int64[Tensor, "2"]:
    """1 + the largest of trainable tokens, and ``HIGHEST`` - the smallest; 0 and 0 if there are none."""
    parts = []
    for some, counted in stretches(values, trainable):
        held, mask = some.int(), bits_of(counted)
        parts.append(torch.stack([((held + 1) & mask).amax(), ((HIGHEST - held) & mask).amax()]))
    return torch.stack(parts).amax(0).long()


def bits_of(kept: Bool[Tensor, "T"]) -> Int32[Tensor, "T"]:
    """All bits where a token is kept, none elsewhere; a select by a random mask takes four times as long as an and."""
    return kept.int().neg_()


def masked(x: Float[Tensor, "T"], bits: Int32[Tensor, "T"]) -> Float[Tensor, "T"]:
    """``x``, float32, where the bits are set and 0 elsewhere, whatever stands there: a NaN has bits like any other.

    >>> masked(torch.tensor([0.5, torch.nan]), bits_of(torch.tensor([True, False])))
    tensor([0.5000, 0.0000])
    """
    return (x.float().view(torch.int32) & bits).view(torch.float32)


def count_of(kept: Bool[Tensor, "T"]) -> Int32[Tensor, ""]:
    """How many there are: in 32 bits, which takes less time than ``count_nonzero``."""
    return kept.sum(dtype=torch.int32)


class Apart(NamedTuple):
    """``d = policy + engine`` where old log-probs are known, within the guard, ``[T]``; 0 at untrainable tokens."""

    policy: Float[Tensor, "T"]
    """``logp - logp_old``: the updates since the token was sampled."""
    engine: Float[Tensor, "T"]
    """``logp_old - logp_behavior``: what the engine computes otherwise at the same weights."""
    own: Int32[Tensor, "T"]
    """1 at trainable tokens that were sampled over no older cache, which is part of what an engine did otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A stretch of a micro-batch at the weights just before the update, all ``[T]``; float32, 0 at untrainable tokens.

    Elementwise arithmetic is float32, what is summed is float64: ``exp`` and its like take most of the time otherwise.
    """

    trainable: Bool[Tensor, "T"]
    sequence: Int[Tensor, "T"]
    """As in the batch, like ``advantage`` and ``turn``."""
    advantage: Float[Tensor, "T"]
    staleness: Int32[Tensor, "T"]
    """As bins of the step's labels."""
    turn: Int[Tensor, "T"] | None
    fates: tuple[Bool[Tensor, "T"], Bool[Tensor, "T"], Bool[Tensor, "T"]]
    """``active, clipped, outward`` of the loss."""
    marks: Mapping[str, Mark]
    """The loss's."""
    weights: Mapping[str, Float[Tensor, "T"]]
    """The loss's."""
    lanes: Int32[Tensor, "T"]
    """Of sums by cell."""
    counted: Int32[Tensor, "T"]
    """1 at trainable tokens."""
    bits: Int32[Tensor, "T"]
    """All bits at trainable tokens."""
    logp: Float[Tensor, "T"]
    """Under the current policy, detached."""
    behavior: Float[Tensor, "T"]
    """Under the policy sampled from."""
    raw: Float64[Tensor, "T"]
    """``logp - behavior``, a float32 number, held in float64 for sums."""
    far: Float[Tensor, "T"]
    """``|raw|``."""
    d: Float64[Tensor, "T"]
    """``raw`` within the guard, held likewise."""
    distance: Float[Tensor, "T"]
    """``|d|``."""
    moved: Float64[Tensor, "T"]
    """The same, held for sums."""
    gain: Float[Tensor, "T"]
    """``e^d - 1``."""
    apart: Apart | None
    """``None`` without old log-probs."""


def looks(logp: Float[Tensor, "T"], tokens: TokenBatch, terms: LossTerms, labels: Labels) -> Iterator[Seen]:
    """Look at a micro-batch, stretch by stretch; ``labels`` are those of staleness."""
    names, factors = tuple(terms.marks), tuple(terms.weights)
    marks = [x for name in names for x in terms.marks[name]]
    fixed = (tokens.trainable, tokens.sequence, tokens.advantage, tokens.staleness)
    optional = (tokens.turn, tokens.logp_old, tokens.is_cached_older)
    given = [x for x in (*fixed, *optional) if x is not None]
    loss = (terms.active, terms.clipped, terms.outward)
    columns = (logp.detach(), tokens.logp_behavior, *loss, *given, *marks, *terms.weights.values())
    own: Tensor | None = None
    for current, behavior, active, clipped, outward, trainable, sequence, advantage, staleness, *rest in stretches(
        *columns
    ):
        turn, old, older = (None if x is None else rest.pop(0) for x in optional)
        counted = trainable.int()
        bits = -counted
        own = lanes(len(bits), bits.device) if own is None else own  # no later stretch is longer than the first
        logp_here, behavior_here = masked(current, bits), masked(behavior, bits)
        raw = logp_here - behavior_here
        d, far = raw.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT), raw.abs()
        distance = far.clamp(max=LOG_RATIO_LIMIT)
        values, among = rest[: len(marks) : 2], rest[1 : len(marks) : 2]
        yield Seen(
            trainable=trainable,
            sequence=sequence,
            advantage=advantage,
            staleness=labels.bins(staleness),
            turn=turn,
            fates=(active, clipped, outward),
            marks={name: Mark(*pair) for name, *pair in zip(names, values, among, strict=True)},
            weights=dict(zip(factors, rest[len(marks) :], strict=True)),
            lanes=own[: len(bits)],
            counted=counted,
            bits=bits,
            logp=logp_here,
            behavior=behavior_here,
            raw=raw.double(),
            far=far,
            d=d.double(),
            distance=distance,
            moved=distance.double(),
            gain=torch.expm1(d),
            apart=None if old is None else _apart((logp_here, masked(old, bits), behavior_here), counted, older),
        )


def _apart(logps: tuple[Tensor, Tensor, Tensor], counted: Int32[Tensor, "T"], older: Bool[Tensor, "T"] | None) -> Apart:
    current, old, behavior = logps
    policy, engine = ((a - b).clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT) for a, b in ((current, old), (old, behavior)))
    return Apart(policy, engine, counted if older is None else counted * ~older)


Tables = tuple[Tensor, ...]


@runtime_checkable
class Question(Protocol):
    """Something asked about a step that sums over its tokens answer: any split gives the same sums."""

    def tables(self, device: torch.device) -> Tables:
        """What a micro-batch is added up in, empty."""
        ...

    def add(self, seen: Seen, tables: Tables) -> None:
        """Add a stretch of it, on the device (no wait)."""
        ...

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """The micro-batch's share of the sums."""
        ...

    def answer(self, sums: Sequence[float]) -> Metrics:
        """What the sums of the whole step say."""
        ...
