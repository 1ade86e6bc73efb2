import math
from pathlib import Path

import numpy as np
import pytest

from tether.evals.comparison import compare
from tether.evals.estimators import Interval
from tether.evals.outcome import Measured, read_outcome
from tether.evals.pairing import paired
from tether.evals.student import seeds_mean, welch

from .made import answers, made_run, problems, write_lines


def comparison_of(*paths: Path, metric: str = "accuracy", place: str = "last"):
    return compare([read_outcome(path, path.stem, metric) for path in paths], metric, place)


def told(comparison) -> str:
    return "\n".join(comparison.notes)


def test_runs_that_were_asked_the_same_are_compared_problem_by_problem(tmp_path):
    weak, strong = answers(0.3), answers(0.6, seed=1)
    found = comparison_of(made_run(tmp_path / "a", weak), made_run(tmp_path / "b", strong, preset="sat"))
    none, difference = found.differences
    result = paired(weak[20], strong[20])
    assert none is None
    assert (difference.value, difference.p) == (result.difference, result.p)
    assert difference.p < 0.01
    assert difference.how == "paired, 40 problems"


def test_the_difference_is_of_the_place_that_was_asked_for(tmp_path):
    rising = {step: np.arange(40)[:, None] < right for step, right in [(0, 5), (10, 30), (20, 10)]}
    flat = {step: np.arange(40)[:, None] < 5 for step in rising}
    runs = made_run(tmp_path / "a", flat), made_run(tmp_path / "b", rising)
    gains = [comparison_of(*runs, place=place).differences[1].value.value for place in ("last", "best", "trailing")]
    assert gains == pytest.approx([5 / 40, 25 / 40, 5 / 40])


def test_p_values_of_several_runs_are_adjusted(tmp_path):
    runs = [made_run(tmp_path / name, answers(0.3 + i / 10, seed=i), preset=name) for i, name in enumerate("abcd")]
    _, *rest = comparison_of(*runs).differences
    smallest = min(rest, key=lambda difference: difference.p)
    assert smallest.adjusted_p == pytest.approx(min(1.0, 3 * smallest.p))
    assert all(difference.adjusted_p >= difference.p for difference in rest)


def test_a_run_without_single_problems_is_compared_unpaired_and_that_is_said(tmp_path):
    old = made_run(tmp_path / "old", answers(0.3), has_lines=False)
    new = made_run(tmp_path / "new", answers(0.4, seed=1), preset="sat")
    found = comparison_of(old, new)
    assert found.differences[1].how == "unpaired"
    assert "no single problems are on file in old" in told(found)
    whole = comparison_of(made_run(tmp_path / "whole", answers(0.3)), new).differences[1]
    assert found.differences[1].value.value == pytest.approx(whole.value.value)


def test_an_unpaired_interval_excludes_0_where_its_p_value_is_small_and_only_there():
    from tether.evals.comparison import unpaired

    one = Measured(step=0, value=Interval(0.5, 0.45, 0.56), scores={})
    for value in np.linspace(0.3, 0.7, 41):
        other = Measured(step=0, value=Interval(value, value - 0.06, value + 0.05), scores={})
        difference = unpaired(one, other)
        assert (difference.value.low > 0 or difference.value.high < 0) == (difference.p < 0.05)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"temperature": 0.5}, "temperature is 0.5 against 1.0"),
        ({"task": "math"}, "task is math against aime"),
        ({"max_tokens": 64}, "max_tokens is 64 against 32"),
        ({"criterion": "exact"}, "criterion is exact against math"),
        ({"reference": "17"}, "the answer to problem aime/0 is '17' against '0'"),
    ],
)
def test_what_was_asked_otherwise_is_told_and_not_compared(tmp_path, other, reason):
    steps = answers(0.4)
    files = [
        write_lines(tmp_path / "a.jsonl", problems(steps)),
        write_lines(tmp_path / "b.jsonl", problems(steps, **other)),
    ]
    found = comparison_of(*files)
    assert found.differences == (None, None)
    assert f"b is not compared with a: {reason}" in told(found)


def test_other_options_of_the_task_are_another_task(tmp_path):
    runs = [made_run(tmp_path / name, answers(0.4), has_lines=False) for name in "ab"]
    config = (runs[1] / "config.json").read_text()
    (runs[1] / "config.json").write_text(config.replace('"name": "aime"', '"name": "aime", "year": 24'))
    found = comparison_of(*runs)
    assert found.differences[1] is None
    assert "task.year is 24 against None" in told(found)


def test_other_problems_are_told_and_the_shared_ones_compared(tmp_path):
    a, b = problems(answers(0.4)), problems(answers(0.5, seed=1))
    first, last = [line for line in a if line.step == 20], [line for line in b if line.step == 20]
    found = comparison_of(write_lines(tmp_path / "a.jsonl", first), write_lines(tmp_path / "b.jsonl", last[:15]))
    assert found.differences[1].how == "paired, 15 problems"
    assert "(15 and 40); their difference is over the 15 that both were" in told(found)
    found = comparison_of(write_lines(tmp_path / "a.jsonl", first), write_lines(tmp_path / "b.jsonl", last[:9]))
    assert found.differences[1].how == "unpaired"
    assert "b and a share 9 of 40 problems" in told(found)


def test_another_number_of_samples_is_told(tmp_path):
    files = [write_lines(tmp_path / f"{k}.jsonl", problems(answers(0.4, k=k))) for k in (2, 8)]
    found = comparison_of(*files)
    assert "Samples a problem: 8 in 8, 2 in 2" in told(found)
    assert found.differences[1].how == "paired, 40 problems"


@pytest.mark.parametrize(("end", "said"), [("fail", "b is failed: no space left"), ("", "b is unfinished")])
def test_a_run_that_did_not_finish_is_marked(tmp_path, end, said):
    long, short = answers(0.4), answers(0.4, seed=1, steps=(0, 10))
    found = comparison_of(made_run(tmp_path / "a", long), made_run(tmp_path / "b", short, end=end))
    assert said in told(found)
    assert "at different steps: a 20, b 10" in told(found)


def test_seeds_of_one_setting_are_a_group_with_an_interval_between_them(tmp_path):
    chances = {"a": (0.3, 0.35, 0.28), "b": (0.6, 0.65, 0.55)}
    runs = [
        made_run(tmp_path / f"{name}-{seed}", answers(chance, seed=seed), seed=seed, preset=name)
        for name, row in chances.items()
        for seed, chance in enumerate(row)
    ]
    found = comparison_of(*runs)
    values = [outcome.last.value.value for outcome in found.outcomes]
    assert [(group.label, group.members, group.seeds) for group in found.groups] == [
        ("a", (0, 1, 2), ("0", "1", "2")),
        ("b", (3, 4, 5), ("0", "1", "2")),
    ]
    assert found.groups[0].means["last"] == seeds_mean(values[:3])
    assert found.groups[1].difference.value == welch(values[:3], values[3:])[0]
    assert found.groups[1].difference.how == "between seeds, 3 against 3"


def test_runs_that_differ_by_more_than_their_seed_are_no_group(tmp_path):
    runs = [made_run(tmp_path / name, answers(0.4), seed=i, preset=name) for i, name in enumerate("ab")]
    assert comparison_of(*runs).groups == ()
    assert comparison_of(runs[0], made_run(tmp_path / "again", answers(0.4), preset="a")).groups == ()


def test_only_settings_that_differ_are_shown(tmp_path):
    runs = [made_run(tmp_path / name, answers(0.4), seed=i, preset=name) for i, name in enumerate("ab")]
    assert comparison_of(*runs).settings == {"run.seed": ("0", "1"), "algorithm.preset": ("a", "b")}


def test_a_number_without_an_interval_gets_no_difference(tmp_path):
    runs = [made_run(tmp_path / name, answers(0.4), preset=name) for name in "ab"]
    found = comparison_of(*runs, metric="reward/mean")
    assert found.differences == (None, None)
    assert "Of reward/mean no interval was journaled" in told(found)


def test_welch_is_that_of_a_table():
    """Against ``scipy.stats.ttest_ind(equal_var=False)`` at whole degrees of freedom."""
    (value, low, high), p = welch([1.0, 2.0, 3.0], [5.0, 6.0, 7.0])
    half = 2.7764451 * math.sqrt(2 / 3)
    assert (value, low, high) == pytest.approx((4.0, 4.0 - half, 4.0 + half))
    assert p == pytest.approx(0.00805, abs=1e-4)
    assert welch([1.0, 1.0], [2.0, 2.0]) is None


def test_a_last_evaluation_that_was_cut_is_told(tmp_path):
    whole, cut = made_run(tmp_path / "a", answers(0.3)), made_run(tmp_path / "b", answers(0.3))
    lines = (cut / "evals.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "evals.jsonl").write_bytes(b"".join(lines)[:-40])
    assert "Of b 39 problems of the last evaluation are on file, and 40 of another" in told(comparison_of(whole, cut))
    assert "on file, and" not in told(comparison_of(whole, whole))
