"""What the journal is told about a step: rewards, lengths, time; and stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from tether.core.advantage import is_flat
from tether.journal.schema import Sample
from tether.pipeline.packing import Row, Step
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import StepReport
from tether.records import Metric, Metrics


def step_metrics(step: Step, report: StepReport, watch: Stopwatch, now_s: float) -> Metrics:
    """Everything a ``step`` event says; what depends on real time lies under ``time/`` and ``throughput/``."""
    rollouts = [rollout for group in step.groups for rollout in group.rollouts]
    n = float(len(rollouts))
    lengths = [len(rollout.completion) for rollout in rollouts]
    rewards = np.array([rollout.reward for rollout in rollouts], np.float64)
    flat = [is_flat(torch.tensor([r.reward for r in g.rollouts], dtype=torch.float64)) for g in step.groups]
    metrics = {
        **report.metrics,
        "reward/mean": Metric(float(rewards.mean()), "mean", n),
        "reward/flat_groups_fraction": Metric(sum(flat) / len(flat), "mean", float(len(flat))),
        "rollout/length_mean": Metric(sum(lengths) / n, "mean", n),
        "rollout/truncated_fraction": Metric(sum(r.completion.finish == "length" for r in rollouts) / n, "mean", n),
    }
    return metrics | time_metrics(watch.lap(), watch.wall_lap(), sum(lengths), now_s)


def time_metrics(seconds: Mapping[str, float], wall_s: float, num_tokens: int, now_s: float) -> Metrics:
    """Real seconds of work by kind since the step before, those that passed, tokens a second, and the run's clock.

    In several processes more seconds of work are done than pass.
    """
    metrics = {f"time/{what}_s": Metric(spent, "sum") for what, spent in sorted(seconds.items())}
    metrics["time/virtual_s"] = Metric(now_s, "last")
    metrics["throughput/wall_s"] = Metric(wall_s, "sum")
    if wall_s > 0:
        metrics["throughput/tokens_per_s"] = Metric(num_tokens / wall_s, "mean", wall_s)
    return metrics


def sample_of(row: Row, number: int, report: StepReport, decode: Callable[[Sequence[int]], str]) -> Sample:
    """A stored rollout as it was when the trainer used it."""
    completion = row.rollout.completion
    ids = completion.token_ids
    logp, stale = report.logp.get(row.rollout.id), report.staleness.get(row.rollout.id)
    return Sample(
        id=row.rollout.id,
        step=number,
        prompt=row.rollout.prompt.text,
        completion=row.rollout.text,
        token_texts=tuple(decode([int(i)]) for i in ids),
        token_ids=ids,
        logp_behavior=completion.logp,
        logp=None if logp is None else logp.float().cpu().numpy(),
        version=completion.version,
        staleness=np.zeros(len(ids), np.int32) if stale is None else stale.cpu().numpy().astype(np.int32),
        trainable=np.full(len(ids), logp is not None, np.bool_),
        reward=row.rollout.reward,
        advantage=row.advantage,
    )
