"""What a step tells of its rewards: each part apart, statuses counted, groups by how many of them are right."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.core.advantage import GRPO
from tether.pipeline.judged import group_metrics, kind_of, part_metrics
from tether.pipeline.packing import credited
from tether.pipeline.reporting import sample_of, step_metrics
from tether.pipeline.stopwatch import Stopwatch
from tether.records import Grade, Judgement, Metric

from .making import completion_of, group_of, rollout_of
from .small import step_of
from .test_reporting import report_of

VALUES = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=4), min_size=1, max_size=6)


def judged(id, value, decides=None, **grades):
    is_right = (value if decides is None else decides) >= 1
    judgement = Judgement(reward=value, grades=grades, is_right=is_right)
    return replace(rollout_of(id, [3], completion_of([4]), value), judgement=judgement)


def groups_of(values):
    return [
        group_of(n, [judged(f"g{n}/{m}", value) for m, value in enumerate(group)]) for n, group in enumerate(values)
    ]


@given(VALUES)
def test_every_group_is_of_one_kind_and_flat_ones_are_told_apart(values):
    metrics = {name.removeprefix("reward/"): metric for name, metric in group_metrics(groups_of(values)).items()}
    n = len(values)
    right = [all(value >= 1 for value in group) for group in values]
    wrong = [all(value < 1 for value in group) for group in values]
    flat = [len(set(group)) == 1 for group in values]
    assert metrics["groups_all_right"] == Metric(sum(right) / n, "mean", float(n))
    assert metrics["groups_all_wrong"] == Metric(sum(wrong) / n, "mean", float(n))
    assert metrics["flat_groups_fraction"] == Metric(sum(flat) / n, "mean", float(n))
    assert metrics["flat_all_wrong"].value == sum(f and w for f, w in zip(flat, wrong, strict=True)) / n
    for kind in ("groups", "flat"):
        total = sum(metrics[f"{kind}_{which}"].value for which in ("all_right", "all_wrong", "mixed"))
        assert total == pytest.approx(1.0 if kind == "groups" else sum(flat) / n)


def test_right_is_what_the_part_that_decides_says_and_not_the_sum():
    assert kind_of(group_of(0, [judged("g0/0", -3.0, 1.0), judged("g0/1", 0.0, 1.0)])) == "all_right"
    assert kind_of(group_of(0, [judged("g0/0", 5.0, 0.0), judged("g0/1", 5.0, 0.0)])) == "all_wrong"
    assert kind_of(group_of(0, [judged("g0/0", 5.0, 0.0), judged("g0/1", 5.0, 1.0)])) == "mixed"


def test_each_part_has_its_mean_before_the_weight_over_the_answers_it_was_asked_about():
    rollouts = [
        judged("g0/0", 1.0, math=Grade(value=1.0, status="correct"), size=Grade(value=-0.5)),
        judged("g0/1", 0.0, math=Grade(value=0.0, status="timeout")),
        judged("g0/2", 0.0, math=Grade(value=0.0, status="wrong")),
        judged("g0/3", 0.0, math=Grade(value=0.0, status="wrong")),
        rollout_of("g0/4", [3], completion_of([4])),
    ]
    assert part_metrics(rollouts) == {
        "reward/part/math": Metric(0.25, "mean", 4.0),
        "reward/part/size": Metric(-0.5, "mean", 1.0),
        "reward/status/math": Metric({"correct": 1.0, "timeout": 1.0, "wrong": 2.0}, "sum", 4.0),
    }


def test_a_step_tells_them_and_a_stored_sample_keeps_them():
    grades = {"math": Grade(value=1.0, status="correct", extracted="12")}
    group = group_of(0, [judged("g0/0", 1.0, **grades), judged("g0/1", 0.0, math=Grade(value=0.0))])
    metrics = step_metrics(step_of([group]), report_of(updated=True), Stopwatch(), 1.0)
    assert metrics["reward/part/math"].value == metrics["reward/mean"].value == 0.5
    assert metrics["reward/groups_mixed"].value == 1.0
    assert metrics["reward/status/math"].value == {"correct": 1.0}
    row = next(iter(credited([group], GRPO())))
    sample = sample_of(row, 3, report_of(updated=False), str)
    assert (sample.grades, sample.is_right) == (grades, True)
