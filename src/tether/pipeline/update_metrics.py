"""What an update says beside the measures of its tokens: loss and entropy, the rule's readings, what reuse did."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tether.core.algorithm import Algorithm
from tether.core.loss import LossTerms
from tether.core.memory import EdgeStatistics
from tether.core.rule import PolicyTokens, Readable
from tether.core.seen import bits_of, masked
from tether.core.statistics import Part
from tether.pipeline.packing import MicroBatch, Step
from tether.records import Metric, Metrics


def policy_metrics(
    algorithm: Algorithm, step: Step, terms: Sequence[LossTerms], policies: Sequence[PolicyTokens]
) -> Metrics:
    """Loss, entropy, the distance to the reference, and what a truncation that is not replayed cuts away."""
    n = float(step.denominator.num_tokens)
    entropy = sum(float(p.entropy.sum()) for p in policies if p.entropy is not None) / n
    metrics = {
        "policy/entropy": Metric(entropy, "mean", n),
        "policy/loss": Metric(sum(float(t.loss) for t in terms)),
    }
    if lost := [p.lost_mass for p in policies if p.lost_mass is not None]:
        metrics["mismatch/lost_mass_mean"] = Metric(sum(float(x.sum()) for x in lost) / n, "mean", n)
        metrics["mismatch/lost_mass_max"] = Metric(max(float(x.amax()) for x in lost if len(x)), "max", n)
    if algorithm.kl is not None:
        metrics["policy/kl_reference"] = Metric(sum(float(t.kl) for t in terms) / n, "mean", n)
    return metrics


def readings(algorithm: Algorithm, step: Step, scopes: Sequence[EdgeStatistics]) -> Metrics:
    """The rule's scope-wide numbers; with several scopes in a step, their mean weighted by tokens."""
    rule = algorithm.rule
    if not isinstance(rule, Readable):
        return {}
    measured = rule.traits.measured(algorithm.level)
    if all(scope is scopes[0] for scope in scopes):
        weighted = [(1.0, rule.readings(scopes[0][measured]))]
    else:
        sizes = [float(sum(len(row.rollout.completion) for row in m.rows)) for m in step.micro_batches]
        weighted = [(w, rule.readings(scope[measured])) for w, scope in zip(sizes, scopes, strict=True)]
    found: dict[str, list[tuple[float, float]]] = {}  # a scope in which a reading has no value leaves it out
    for weight, read in weighted:
        for name, value in read.items():
            found.setdefault(name, []).append((weight, value))
    return {name: Metric(sum(w * x for w, x in each) / sum(w for w, _ in each)) for name, each in found.items()}


def reuse_metrics(clip_fractions: Sequence[float], last: Sequence[Part]) -> Metrics:
    """What several updates from one batch came to.

    ``reuse/clip_fraction_by_update``: tokens without a gradient, by the number of updates that the batch had served
    before. ``reuse/moved_abs_mean`` and ``reuse/moved_max``: ``|logp - logp_anchor|`` in nats over trainable tokens at
    the last of them, which is how far the policy has gone from the one that took the batch.

    Args:
        clip_fractions: one an update.
        last: ``(logp, tokens)`` of every micro-batch at the last.
    """
    sums = torch.zeros(2, dtype=torch.float64)
    largest = 0.0
    for logp, tokens in last:
        assert tokens.logp_anchor is not None, "the first update of a batch makes its anchor"
        moved = masked(logp.detach() - tokens.logp_anchor, bits_of(tokens.trainable)).abs()
        sums += torch.stack([moved.sum(dtype=torch.float64), tokens.trainable.sum().double()]).cpu()
        largest = max(largest, float(moved.amax())) if len(moved) else largest
    total, count = sums.tolist()
    by_update = {str(number): fraction for number, fraction in enumerate(clip_fractions)}
    return {
        "reuse/clip_fraction_by_update": Metric(by_update, "mean", count),
        "reuse/moved_abs_mean": Metric(total / count, "mean", count),
        "reuse/moved_max": Metric(largest, "max", count),
    }


def by_rollout(micro_batches: Sequence[MicroBatch], values: Sequence[Tensor]) -> dict[str, Tensor]:
    """What belongs to each rollout of values laid along the tokens of every micro-batch."""
    pieces: dict[str, Tensor] = {}
    for micro_batch, value in zip(micro_batches, values, strict=True):
        lengths = [len(row.rollout.completion) for row in micro_batch.rows]
        for row, piece in zip(micro_batch.rows, value.detach().split_with_sizes(lengths), strict=True):
            pieces[row.rollout.id] = piece
    return pieces
