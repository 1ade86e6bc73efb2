"""The only place where a rule, its corrections, the tokens and the denominator meet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tether.core.aggregation import Denominator
from tether.core.algorithm import Algorithm
from tether.core.memory import EdgeStatistics
from tether.core.ratio import ENDS, Level, Ratio, edge_log_ratio, log_ratio, logp_of
from tether.core.rule import Correction, Mark, PolicyTokens, Rule, Traits
from tether.core.statistics import Gather, Part, Statistic, Statistics, measure
from tether.core.tokens import TokenBatch, only
from tether.registry import CORRECTIONS


class LossTerms(NamedTuple):
    """A micro-batch's share of the step's loss; shares add up to the loss of the whole step."""

    loss: Float[Tensor, ""]
    """What is minimized: ``surrogate + coefficient * kl - entropy_coefficient * entropy``."""
    surrogate: Float[Tensor, ""]
    """Aggregated ``-objective * weights``, detached."""
    kl: Float[Tensor, ""]
    """Sum over trainable tokens of the estimate of KL(pi || reference), detached; 0 without a reference."""
    active: Bool[Tensor, "T"]
    """Trainable tokens that rule and corrections leave a gradient."""
    clipped: Bool[Tensor, "T"]
    """Trainable tokens that the rule denies one."""
    outward: Bool[Tensor, "T"]
    """Trainable tokens that have moved away from the data: ``A (r - 1) > 0``."""
    marks: Mapping[str, Mark]
    """The rule's readings, each with the trainable tokens that it is averaged over."""
    weights: Mapping[str, Float[Tensor, "T"]]
    """What each correction, by name, multiplied the objective with."""


def policy_loss(
    policy: PolicyTokens,
    tokens: TokenBatch,
    algorithm: Algorithm,
    stats: EdgeStatistics,
    denominator: Denominator,
) -> LossTerms:
    """This micro-batch's share of the loss; an empty one gives ``0 * sum logp``, so graphs and collectives still run.

    Two responses, the second moved too far upwards to keep its gradient; measured over the one micro-batch of the step:

    >>> from tether.core.advantage import GRPO
    >>> from tether.core.aggregation import SeqMeanTokenMean
    >>> from tether.core.examples import tokens_of
    >>> from tether.proximal.rollout import RolloutProximal
    >>> from tether.rules.sat import SAT
    >>> algorithm = Algorithm(
    ...     proximal=RolloutProximal(), level="token", rule=SAT(), aggregation=SeqMeanTokenMean(), advantage=GRPO())
    >>> tokens, logp = tokens_of(log_ratio=[0.0, 0.1, 0.3], advantage=[1.0, 1.0, 1.0], sequence=[0, 0, 1])
    >>> stats = measure_scope(algorithm, [(logp, tokens)])
    >>> terms = policy_loss(PolicyTokens(logp), tokens, algorithm, stats, Denominator(num_tokens=3, num_sequences=2))
    >>> terms.loss.backward()
    >>> round(terms.loss.item(), 4), [round(x, 4) for x in logp.grad.tolist()]
    (-1.1263, [-0.25, -0.2763, 0.0])

    Args:
        policy: log-probabilities (and entropy, if the recipe has a bonus) under the weights being updated, ``[T]``.
        tokens: everything else about the tokens, ``[T]``; untrainable ones never matter, whatever they hold.
        algorithm: the choices.
        stats: ``measure_scope`` over the algorithm's scope.
        denominator: counts of the whole step, before any mask: a mask that shrank its own denominator would raise
            the learning rate as it masks more.
    """
    trainable = tokens.trainable
    quiet, own = tokens.neutralized(), policy.quiet(trainable)
    ratios = _Ratios(algorithm.level, own.logp, quiet)
    ratio = ratios(algorithm.rule)
    answer = algorithm.rule(ratio, own, quiet, _measured(algorithm.rule, algorithm.level, stats))
    weights = _weights(algorithm, own.detached(), quiet, stats, ratios)
    share = torch.where(trainable, algorithm.aggregation(quiet, denominator), 0.0)
    surrogate = -(math.prod(weights.values(), start=share) * answer.objective).sum()
    penalty, kl = _penalty(algorithm, quiet, own.logp, share)
    loss = surrogate + penalty
    if algorithm.entropy:
        assert own.entropy is not None, "an entropy bonus needs the policy's entropy"
        loss = loss - algorithm.entropy * (share * own.entropy).sum()
    return LossTerms(
        loss=loss,
        surrogate=surrogate.detach(),
        kl=kl.detach(),
        active=math.prod((weight > 0 for weight in weights.values()), start=answer.active & trainable),
        clipped=~answer.active & trainable,
        outward=(quiet.advantage * ratio.detach() > 0) & trainable,
        marks={name: Mark(m.value, m.among & trainable) for name, m in answer.marks.items()},
        weights=weights,
    )


class _Ratios:
    """The log-ratios that factors are handed; two that read the same policies at one level share theirs."""

    def __init__(self, level: Level, logp: Float[Tensor, "T"], quiet: TokenBatch) -> None:
        self._level, self._logp, self._quiet = level, logp, quiet
        self._made: dict[tuple[int, int, Level], Float[Tensor, "T"]] = {}

    def __call__(self, factor: Rule | Correction) -> Float[Tensor, "T"]:
        ratio = factor.traits.ratio(self._level)
        above, below = (id(logp_of(policy, self._logp, self._quiet)) for policy in ENDS[ratio.edge])
        if (key := (above, below, ratio.level)) not in self._made:
            self._made[key] = edge_log_ratio(ratio.edge, self._logp, self._quiet, ratio.level)
        return self._made[key]


def _weights(
    algorithm: Algorithm, policy: PolicyTokens, quiet: TokenBatch, stats: EdgeStatistics, ratios: _Ratios
) -> dict[str, Float[Tensor, "T"]]:
    """What each correction multiplies the objective with, by name."""
    weights: dict[str, Float[Tensor, "T"]] = {}
    for correction in algorithm.corrections:
        seen = ratios(correction).detach()
        known = _measured(correction, algorithm.level, stats)
        weights[CORRECTIONS.name_of(correction)] = correction(seen, policy, quiet, known).value.detach()
    return weights


def _penalty(
    algorithm: Algorithm, quiet: TokenBatch, logp: Float[Tensor, "T"], share: Float[Tensor, "T"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """What leaving the reference costs, aggregated and times its coefficient; and the sum of the estimate."""
    if algorithm.kl is None:
        return logp.new_zeros(()), logp.new_zeros(())
    assert quiet.logp_reference is not None, "a KL penalty needs logp_reference"
    estimate = torch.where(quiet.trainable, algorithm.kl(log_ratio(logp, quiet.logp_reference)), 0.0)
    return algorithm.kl.coefficient * (share * estimate).sum(), estimate.sum()


def measure_scope(algorithm: Algorithm, parts: Iterable[Part], across: Gather | None = None) -> EdgeStatistics:
    """Measure what the rule and the corrections need over ``(logp, tokens)`` of every micro-batch of a scope.

    A factor's statistics are taken on the log-ratio of the edge that it names, at its level, exactly as the factor
    will see it. ``across`` gathers shares over ranks.
    """
    return measure_traits(algorithm.traits, algorithm.level, parts, across)


def measure_traits(
    traits: Iterable[Traits], level: Level, parts: Iterable[Part], across: Gather | None = None
) -> EdgeStatistics:
    """Measure what all of these need, each over the log-ratio that it names."""
    needs: dict[Ratio, tuple[Statistic, ...]] = {}
    for one in traits:
        ratio = one.measured(level)
        needs[ratio] = (*needs.get(ratio, ()), *one.needs)
    if not any(needs.values()):
        return {ratio: Statistics({}) for ratio in needs}
    pieces = [(only(t.trainable, logp.detach().float()), t.neutralized()) for logp, t in parts]
    return {
        ratio: measure(
            [(edge_log_ratio(ratio.edge, logp, t, ratio.level), t) for logp, t in pieces] if wanted else [],
            wanted,
            across,
        )
        for ratio, wanted in needs.items()
    }


def _measured(factor: Rule | Correction, level: Level, stats: EdgeStatistics) -> Statistics:
    return stats[factor.traits.measured(level)]
