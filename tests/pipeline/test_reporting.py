from dataclasses import replace

import pytest

from tether.journal import Ledger
from tether.pipeline.reporting import Standing, staleness_parts, step_metrics
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.timeline import Timeline
from tether.pipeline.trainer import StepReport
from tether.records import Metric

from .making import completion_of, group_of, rollout_of
from .small import step_of


def rollout(id: str, versions: list[int], finished_at: int, reward: float = 0.0):
    made = rollout_of(id, [3], completion_of([4] * len(versions), version=versions), reward)
    return replace(made, finished_at=finished_at)


def report_of(*, updated: bool) -> StepReport:
    return StepReport(metrics={}, updated=updated, logp={}, staleness={})


def test_staleness_is_told_apart_in_flight_and_in_the_queue_weighted_by_tokens():
    parts = staleness_parts([rollout("g0/0", [0, 0, 8], 8), rollout("g0/1", [4], 8)], updates=10)
    assert parts["staleness/in_flight_mean"] == Metric((3 * 8 + 1 * 4) / 4, "mean", 4.0)
    assert parts["staleness/in_queue_mean"] == Metric(2.0, "mean", 4.0)
    assert parts["rollout/versions_mean"] == Metric(1.5, "mean", 2.0)


def test_rollouts_without_tokens_have_no_staleness():
    assert staleness_parts([rollout("g0/0", [], 8)], updates=10) == {}


@pytest.mark.parametrize("updated", [True, False])
def test_a_step_tells_how_many_rollouts_it_trained_and_how_the_pipeline_stood(updated):
    flat = group_of(0, [rollout(f"g0/{m}", [0], 0, 1.0) for m in range(2)])
    mixed = group_of(1, [rollout(f"g1/{m}", [0], 0, float(m)) for m in range(3)])
    step = step_of([flat, mixed])
    timeline = Timeline(None, lambda: 0.0)
    timeline.waited("data", 2.0)
    standing = Standing(updates=3, admitted=9, gauges={"queue_groups": 4}, waits=timeline.take())
    metrics = step_metrics(step, report_of(updated=updated), Stopwatch(), 1.0, standing)
    trained = len({row.rollout.id for row in step.rows}) if updated else 0
    assert metrics["ledger/trained"] == Metric(float(trained), "sum")
    assert metrics["ledger/admitted"] == Metric(9.0, "last")
    assert metrics["pipeline/queue_groups"] == Metric(4.0)
    assert metrics["wait/data_s"] == Metric(2.0, "sum")
    assert metrics["staleness/in_queue_mean"].value == 3.0


def test_a_gauge_that_nobody_knows_is_refused():
    with pytest.raises(AssertionError, match="no gauge"):
        Standing(updates=0, admitted=0, gauges={"queue": 1})


def test_the_ledger_tells_versions_cache_and_restarts():
    import numpy as np

    made = rollout("g0/0", [0, 8, 8], 8)
    cached = replace(made.completion, cached_version=np.array([0, 0, 0], np.int32))
    ledger = Ledger(lambda line: None)
    ledger.admit("g0/0", "p", "g0")
    ledger.finish(replace(made, completion=cached, sampled_s=2.0, num_restarts=1))
    line = ledger.close("g0/0", "trained")
    assert (line.num_versions, line.cached_version, line.num_restarts, line.sampled_s) == (2, 0, 1, 2.0)
    assert (line.version_first, line.version_last) == (0, 8)
