"""What the tokens of a step looked like: every question at once, each micro-batch looked at once, one wait at the end.

Sums and counts are joined over micro-batches and ranks before anything is divided, so that no answer depends on how a
step was split: a variance or an effective sample size is no mean of its parts'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.fates import Factors, Fates, Turns
from tether.core.loss import LossTerms
from tether.core.mismatch import ResponseMismatch, TokenMismatch
from tether.core.ratio import log_ratio
from tether.core.seen import Question, Seen, Spans
from tether.core.statistics import AbsoluteQuantile, Gather, Part, Sofar, measure
from tether.core.tokens import TokenBatch, only
from tether.records import Metric, Metrics

TAIL: Final = AbsoluteQuantile(0.99)


@dataclass(frozen=True, slots=True)
class AbsoluteMax:
    """The largest ``|d|`` of trainable tokens; 0 if there are none."""

    rounds: ClassVar[int] = 1

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Float[Tensor, ""]:
        """Of a micro-batch."""
        return only(tokens.trainable, d).abs().amax() if len(d) else d.new_zeros(())

    def reduce(self, parts: Sequence[Tensor]) -> Float[Tensor, ""]:
        """The largest of the largest."""
        return torch.stack(list(parts)).amax()

    def finish(self, reduced: Sofar) -> Float[Tensor, ""]:
        """It is the number."""
        return reduced[0]


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
    questions: list[Question] = [TokenMismatch(), ResponseMismatch(reach.responses), Fates(reach.staleness)]
    questions += [Turns(reach.turn)] if reach.turn else []
    questions += [Factors(tuple(sorted(terms[0].marks)), tuple(terms[0].weights))]
    micro_batches = (Seen.of(logp, t, term) for (logp, t), term in zip(parts, terms, strict=True))
    shares = [[question.share(seen) for question in questions] for seen in micro_batches]
    sizes = [len(share) for share in shares[0]]
    sums = torch.stack([torch.cat(share) for share in shares]).sum(0)
    if across is not None:
        sums = torch.stack(list(across(sums))).sum(0)
    pairs = [(log_ratio(logp.detach(), t.logp_behavior), t) for logp, t in parts]
    ends = measure(pairs, [TAIL, AbsoluteMax()], across)
    tail, largest, *values = torch.cat([ends[TAIL].double()[None], ends[AbsoluteMax()].double()[None], sums]).tolist()
    metrics: Metrics = {}
    for question, size in zip(questions, sizes, strict=True):
        metrics |= question.answer(values[:size])
        values = values[size:]
    count = metrics["mismatch/abs_mean"].count
    return {
        **metrics,
        "mismatch/p99": Metric(tail, "mean", count),
        "mismatch/max": Metric(largest, "max", count),
    }
