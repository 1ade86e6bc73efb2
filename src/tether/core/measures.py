"""What the tokens of a step looked like: every question at once, a stretch of tokens at a time, one wait at the end.

Sums and counts are joined over micro-batches and ranks before anything is divided, so that no answer depends on how a
step was split: a variance or an effective sample size is no mean of its parts'.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from tether.core.fates import Factors, Fates, Turns
from tether.core.loss import LossTerms
from tether.core.mismatch import ResponseMismatch, TokenMismatch
from tether.core.old_mismatch import OldMismatch
from tether.core.ratio import log_ratio
from tether.core.seen import Labels, Question, Seen, Spans, looks
from tether.core.statistics import AbsoluteQuantile, Gather, Part
from tether.core.stretches import stretches
from tether.records import Metric, Metrics

TAIL: Final = AbsoluteQuantile(0.99)
EXTREMES: Final = ("max", "policy_max", "engine_max")
"""Largest ``|d|``, and, with old log-probs, largest ``|d_policy|``, and ``|d_engine|`` over no older cache."""


def observed(parts: Sequence[Part], terms: Sequence[LossTerms], reach: Spans, across: Gather | None = None) -> Metrics:
    """Mismatch, fates, staleness, marks and weights of a step; empty if no token is trainable.

    >>> from tether.core.aggregation import Denominator, TokenMean
    >>> from tether.core.advantage import GRPO
    >>> from tether.core.algorithm import Algorithm
    >>> from tether.core.examples import tokens_of
    >>> from tether.core.loss import measure_scope, policy_loss
    >>> from tether.core.rule import PolicyTokens
    >>> from tether.core.seen import spans
    >>> from tether.proximal.rollout import RolloutProximal
    >>> from tether.rules.ppo import PPO
    >>> tokens, logp = tokens_of(log_ratio=[0.3, 0.1], advantage=[1.0, -1.0], stale=2)
    >>> algorithm = Algorithm(
    ...     proximal=RolloutProximal(), level="token", rule=PPO(), aggregation=TokenMean(), advantage=GRPO())
    >>> terms = policy_loss(PolicyTokens(logp), tokens, algorithm, measure_scope(algorithm, [(logp, tokens)]),
    ...     Denominator(num_tokens=2, num_sequences=2))
    >>> metrics = observed([(logp, tokens)], [terms], spans([tokens]))
    >>> metrics["fate/clipped/positive/outward"].value, round(metrics["mismatch/abs_mean"].value, 4)
    (0.5, 0.2)

    Args:
        parts: ``(logp, tokens)`` of every micro-batch, as they went into the loss.
        terms: what the loss made of each.
        reach: ``spans`` of the same tokens.
        across: the all-gather over ranks; absent on one rank.
    """
    if reach.staleness is None:
        return {}
    labels = reach.staleness
    questions: list[Question] = [TokenMismatch(), ResponseMismatch(reach.responses, labels), Fates(labels)]
    questions += [Turns(reach.turn)] if reach.turn else []
    extremes = EXTREMES if all(tokens.logp_old is not None for _, tokens in parts) else EXTREMES[:1]
    questions += [OldMismatch(labels)] if extremes == EXTREMES else []
    questions += [Factors(tuple(sorted(terms[0].marks)), tuple(terms[0].weights))]
    shares = [_share(questions, labels, part, term) for part, term in zip(parts, terms, strict=True)]
    sizes = [len(x) for x in shares[0].sums]
    sums = torch.stack([torch.cat([*share.sums, share.largest]) for share in shares])
    num = len(extremes)
    reduced = _joined(sums, num) if across is None else _joined(torch.stack(list(across(_joined(sums, num)))), num)
    tail = _tail(parts, [share.counts for share in shares], across)
    *values, p99 = torch.cat([reduced, tail.double()[None]]).tolist()
    values, largest = values[:-num], values[-num:]
    metrics: Metrics = {}
    for question, size in zip(questions, sizes, strict=True):
        metrics |= question.answer(values[:size])
        values = values[size:]
    count = metrics["mismatch/abs_mean"].count
    return {
        **metrics,
        "mismatch/p99": Metric(p99, "mean", count),
        **{f"mismatch/{name}": Metric(x, "max", count) for name, x in zip(extremes, largest, strict=True)},
    }


class _Share(NamedTuple):
    """What a micro-batch says."""

    sums: list[Float64[Tensor, "_"]]
    """One tensor a question."""
    largest: Float64[Tensor, "E"]
    """Those of ``EXTREMES`` that can be told; 0 if there are no tokens."""
    counts: Int64[Tensor, "bins"]
    """Of ``|d|``, the first round of the tail."""


def _share(questions: Sequence[Question], labels: Labels, part: Part, terms: LossTerms) -> _Share:
    logp, tokens = part
    tables = [question.tables(logp.device) for question in questions]
    counts = TAIL.no_counts(logp.device, None)
    largest: Tensor | None = None
    for seen in looks(logp, tokens, terms, labels) if len(tokens) else ():
        for question, own in zip(questions, tables, strict=True):
            question.add(seen, own)
        TAIL.count(seen.distance, seen.counted, counts, None)
        here = _extremes(seen)
        largest = here if largest is None else torch.maximum(largest, here)
    sums = [question.share(own) for question, own in zip(questions, tables, strict=True)]
    none = torch.zeros(1 if tokens.logp_old is None else len(EXTREMES), device=logp.device)
    return _Share(sums, (none if largest is None else largest).double(), counts.long())


def _extremes(seen: Seen) -> Float[Tensor, "E"]:
    found = [seen.distance.amax()]
    if seen.apart is not None:
        found += [seen.apart.policy.abs().amax(), (seen.apart.engine.abs() * seen.apart.own).amax()]
    return torch.stack(found)


def _tail(parts: Sequence[Part], first: Sequence[Int64[Tensor, "bins"]], across: Gather | None) -> Float[Tensor, ""]:
    """The quantile, from the counts of its first round: only the second looks at the tokens again."""

    def joined(shares: Sequence[Tensor]) -> Tensor:
        here = TAIL.reduce(shares)
        return here if across is None else TAIL.reduce(across(here))

    upper = joined(first)
    bucket = TAIL.bucket(upper)
    second = []
    for logp, tokens in parts:
        counts = TAIL.no_counts(logp.device, bucket)
        for current, behavior, trainable in stretches(logp.detach(), tokens.logp_behavior, tokens.trainable):
            TAIL.count(log_ratio(current, behavior).abs(), trainable.int(), counts, bucket)
        second.append(counts.long())
    return TAIL.finish((upper, joined(second)))


def _joined(rows: Float64[Tensor, "N K"], num: int) -> Float64[Tensor, "K"]:
    """Sums added up, and the largest, which stand last, compared."""
    return torch.cat([rows[:, :-num].sum(0), rows[:, -num:].amax(0)])
