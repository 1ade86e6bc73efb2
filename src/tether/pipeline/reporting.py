"""What the journal is told about a step: rewards, lengths, time; and stored samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tether.journal.schema import Sample
from tether.pipeline.judged import group_metrics, part_metrics
from tether.pipeline.packing import Row, Step
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import StepReport
from tether.records import Metric, Metrics, Rollout

GAUGES: Final = ("queue_groups", "in_flight_rollouts", "slots_free", "versions_in_flight", "publish_debt")
"""What is read off the pipeline when a step is done: finished groups that no batch took; rollouts asked for and not
finished; free slots; distinct versions among tokens under way and in the queue; updates made since the last
publication."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the pipeline stood when a step was done."""

    updates: int
    """Optimizer updates made before the batch was used."""
    admitted: int
    """Rollouts admitted since the run began."""
    gauges: Mapping[str, int | float] = field(default_factory=dict)
    """Some or all of ``GAUGES``."""
    waits: Metrics = field(default_factory=dict)
    """What the timeline took, and what the curriculum counted."""

    def __post_init__(self) -> None:
        assert set(self.gauges) <= set(GAUGES), f"no gauge {set(self.gauges) - set(GAUGES)}; there are {GAUGES}"


def step_metrics(
    step: Step, report: StepReport, watch: Stopwatch, now_s: float, standing: Standing | None = None
) -> Metrics:
    """Everything a ``step`` event says; what depends on real time lies under ``time/`` and ``throughput/``."""
    rollouts = [rollout for group in step.groups for rollout in group.rollouts]
    n = float(len(rollouts))
    lengths = [len(rollout.completion) for rollout in rollouts]
    rewards = np.array([rollout.reward for rollout in rollouts], np.float64)
    metrics = {
        **report.metrics,
        "reward/mean": Metric(float(rewards.mean()), "mean", n),
        **group_metrics(step.groups),
        **part_metrics(rollouts),
        "rollout/restarts_mean": Metric(sum(r.num_restarts for r in rollouts) / n, "mean", n),
        "rollout/length_mean": Metric(sum(lengths) / n, "mean", n),
        "rollout/truncated_fraction": Metric(sum(r.completion.finish == "length" for r in rollouts) / n, "mean", n),
        "ledger/trained": Metric(float(num_trained(step, report)), "sum"),
    }
    if standing is not None:
        metrics |= {f"pipeline/{name}": Metric(float(value)) for name, value in sorted(standing.gauges.items())}
        metrics |= standing.waits | staleness_parts(rollouts, standing.updates)
        metrics["ledger/admitted"] = Metric(float(standing.admitted), "last")
    return metrics | time_metrics(watch.lap(), watch.wall_lap(), sum(lengths), now_s)


def num_trained(step: Step, report: StepReport) -> int:
    """Rollouts of a step that an update was made from: those with a row in it."""
    return len({row.rollout.id for row in step.rows}) if report.updated else 0


def staleness_parts(rollouts: Sequence[Rollout], updates: int) -> Metrics:
    """Where the staleness of a batch's first tokens came from, each rollout weighted by its tokens.

    In flight: updates made between a rollout's first version and its reward. In the queue: between its reward and the
    ``updates`` made before the batch. Their sum is the staleness of its first token.
    """
    long = [rollout for rollout in rollouts if len(rollout.completion)]
    if not long:
        return {}
    tokens = np.array([len(rollout.completion) for rollout in long], np.float64)
    first = np.array([int(rollout.completion.version[0]) for rollout in long], np.float64)
    finished = np.array([rollout.finished_at for rollout in long], np.float64)
    count = float(tokens.sum())
    parts = {"in_flight": finished - first, "in_queue": updates - finished}
    versions = float(np.mean([len(np.unique(rollout.completion.version)) for rollout in long]))
    return {
        **{
            f"staleness/{name}_mean": Metric(float(tokens @ part) / count, "mean", count)
            for name, part in parts.items()
        },
        "rollout/versions_mean": Metric(versions, "mean", float(len(long))),
    }


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
    judgement = row.rollout.judgement
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
        grades={} if judgement is None else judgement.grades,
        is_right=None if judgement is None else judgement.is_right,
        num_kept=None if completion.kept is None else np.diff(completion.kept.starts).astype(np.int32),
    )
