"""What the measures of a step look at: its tokens, one micro-batch at a time, and the labels they are sorted under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from tether.core.loss import LossTerms
from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.statistics import Gather
from tether.core.tokens import TokenBatch, only
from tether.records import Metrics

NOWHERE: Final = -(2**62)
"""Below every staleness and turn."""


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

    def bins(self, values: Int64[Tensor, "T"]) -> Int64[Tensor, "T"]:
        """The bin of every value, ``[T]``; of an untrainable token any."""
        return (values - self.low).clamp_(0, self.size - 1)


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
    oldest, youngest, last, first, highest = everything.tolist()
    return Spans(
        staleness=None if oldest == NOWHERE else Labels(-youngest, oldest),
        turn=None if last == NOWHERE else Labels(-first, last),
        responses=max(highest, -1) + 1,
    )


def _ends(tokens: TokenBatch) -> Int64[Tensor, "5"]:
    nothing = torch.full((2,), NOWHERE, device=tokens.staleness.device)
    turn = nothing if tokens.turn is None else _extremes(tokens.turn, tokens)
    highest = tokens.sequence.long().amax() if len(tokens) else nothing[0]
    return torch.cat([_extremes(tokens.staleness, tokens), turn, highest[None]])


def _extremes(values: Int[Tensor, "T"], tokens: TokenBatch) -> Int64[Tensor, "2"]:
    """The largest of trainable tokens, and minus the smallest."""
    if not len(tokens):
        return torch.full((2,), NOWHERE, device=values.device)
    held = values.long()
    most = torch.where(tokens.trainable, held, NOWHERE).amax()
    least = torch.where(tokens.trainable, held, -NOWHERE).amin()
    return torch.stack([most, -least])


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A micro-batch at the weights just before the update; all ``[T]``, and 0 at untrainable tokens."""

    tokens: TokenBatch
    """As it was handed in, untrainable tokens included."""
    terms: LossTerms
    """What the loss made of it."""
    trainable: Bool[Tensor, "T"]
    logp: Float[Tensor, "T"]
    """Under the current policy, detached, float32."""
    behavior: Float[Tensor, "T"]
    """Under the policy sampled from, float32."""
    raw: Float[Tensor, "T"]
    """``logp - behavior``, float32."""
    d: Float64[Tensor, "T"]
    """The same within the guard."""
    gain: Float64[Tensor, "T"]
    """``e^d - 1``."""
    distance: Float64[Tensor, "T"]
    """``|d|``."""
    counted: Float64[Tensor, "T"]
    """1 at trainable tokens."""

    @classmethod
    def of(cls, logp: Float[Tensor, "T"], tokens: TokenBatch, terms: LossTerms) -> Seen:
        """Look at a micro-batch. Selected by where, not by a product: 0 * NaN is NaN."""
        current = only(tokens.trainable, logp.detach().float())
        behavior = only(tokens.trainable, tokens.logp_behavior.float())
        raw = current - behavior
        d = raw.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).double()
        return cls(
            tokens=tokens,
            terms=terms,
            trainable=tokens.trainable,
            logp=current,
            behavior=behavior,
            raw=raw,
            d=d,
            gain=torch.expm1(d),
            distance=d.abs(),
            counted=tokens.trainable.double(),
        )


class Question(Protocol):
    """Something asked about a step that sums over its tokens answer: any split gives the same sums."""

    def share(self, seen: Seen) -> Float64[Tensor, "K"]:
        """One micro-batch's share of the sums, on the device (no wait)."""
        ...

    def answer(self, sums: Sequence[float]) -> Metrics:
        """What the sums of the whole step say."""
        ...
