import json
import math

import numpy as np
import pytest

from tether.errors import ConfigError, DataError
from tether.evals.at_k import average_at
from tether.evals.outcome import read_outcome

from .made import answers, made_run, problem, problems, write_lines


def test_a_run_with_single_problems_has_a_score_for_each(tmp_path):
    steps = answers(0.4)
    outcome = read_outcome(made_run(tmp_path / "run", steps), "run")
    assert [measured.step for measured in outcome.evaluations] == [0, 10, 20]
    assert outcome.last.scores == {f"aime/{i}": row.mean() for i, row in enumerate(steps[20])}
    assert outcome.last.value == average_at(steps[20])
    assert (outcome.state, outcome.protocol["k"], outcome.protocol["temperature"]) == ("finished", 4, 1.0)


def test_best_is_the_largest_and_trailing_the_mean_of_the_last_quarter(tmp_path):
    rows = {step: np.arange(20)[:, None] < right for step, right in [(0, 4), (5, 16), (10, 8), (15, 6), (20, 10)]}
    for has_lines in (True, False):
        outcome = read_outcome(made_run(tmp_path / f"run{has_lines}", rows, has_lines=has_lines), "run")
        assert (outcome.best.step, outcome.best.value.value) == (5, pytest.approx(0.8))
        assert outcome.last.value.value == pytest.approx(0.5)
        assert outcome.trailing.value.value == pytest.approx(0.4)
        assert outcome.trailing.value.low < 0.4 < outcome.trailing.value.high
        assert outcome.at("last") == outcome.last


def test_a_run_from_before_there_were_single_problems_has_what_it_journaled(tmp_path):
    steps = answers(0.4)
    outcome = read_outcome(made_run(tmp_path / "run", steps, has_lines=False), "run")
    assert outcome.last.scores == {}
    assert outcome.last.value == pytest.approx(average_at(steps[20]))
    assert outcome.protocol == {"task": "aime", "temperature": 1.0, "max_tokens": 32, "k": 4}


def test_pass_and_majority_are_of_the_samples(tmp_path):
    flags = np.array([[True, False, False, True], [False, False, False, False], [True, True, True, True]])
    run = made_run(tmp_path / "run", {0: flags})
    assert read_outcome(run, "run", "pass@2").last.scores == pytest.approx({"aime/0": 5 / 6, "aime/1": 0, "aime/2": 1})
    assert read_outcome(run, "run", "maj@4").last.scores == {"aime/0": 1.0, "aime/1": 0.0, "aime/2": 1.0}
    assert read_outcome(run, "run", "maj@1").last.scores == {"aime/0": 1.0, "aime/1": 0.0, "aime/2": 1.0}


def test_a_failed_sample_is_left_out_and_so_is_a_problem_with_too_few(tmp_path):
    lines = [problem(0, 0, [True, None]), problem(0, 1, [None, None]), problem(0, 2, [False, True])]
    file = write_lines(tmp_path / "a.jsonl", lines)
    assert read_outcome(file, "a").last.scores == {"aime/0": 1.0, "aime/2": 0.5}
    assert read_outcome(file, "a", "pass@2").last.scores == {"aime/2": 1.0}
    assert read_outcome(file, "a", "maj@2").last.scores == {"aime/2": 0.0}
    assert read_outcome(file, "a").state == "evaluated"


def test_a_problem_that_is_asked_twice_counts_twice(tmp_path):
    lines = [problem(0, 7, [True]), problem(0, 7, [False])]
    assert read_outcome(write_lines(tmp_path / "a.jsonl", lines), "a").last.scores == {"aime/7": 1.0, "aime/7 #2": 0.0}


def test_any_journaled_number_can_be_asked_for(tmp_path):
    outcome = read_outcome(made_run(tmp_path / "run", answers(0.4)), "run", "reward/mean")
    assert [measured.value.value for measured in outcome.evaluations] == pytest.approx([0.25, 0.35, 0.45])
    assert math.isnan(outcome.last.value.low)


@pytest.mark.parametrize("metric", ["pass@9", "speed"])
def test_a_metric_that_a_run_does_not_have_is_refused_with_those_it_has(tmp_path, metric):
    run = made_run(tmp_path / "run", answers(0.4))
    with pytest.raises(ConfigError, match=rf"run has no metric '{metric}'.*eval/accuracy.*reward/mean.*leave the run"):
        read_outcome(run, "run", metric)


def test_a_file_of_something_else_is_refused_with_its_line(tmp_path):
    good = write_lines(tmp_path / "a.jsonl", problems(answers(0.4, n=1)))
    bad = tmp_path / "b.jsonl"
    bad.write_text(good.read_text().splitlines()[0] + "\n" + json.dumps({"schema": 1}) + "\n")
    with pytest.raises(DataError, match=r"line 2 of .*b\.jsonl is not an evaluated problem"):
        read_outcome(bad, "b")


@pytest.mark.parametrize(("end", "state"), [("finish", "finished"), ("fail", "failed"), ("", "unfinished")])
def test_how_a_run_ended_is_told(tmp_path, end, state):
    outcome = read_outcome(made_run(tmp_path / "run", answers(0.4), end=end), "run")
    assert (outcome.state, outcome.why) == (state, "no space left" if end == "fail" else "")
