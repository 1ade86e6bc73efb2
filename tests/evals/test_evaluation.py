"""From completions to numbers: every sample has one verdict and one version, and the estimates are those by hand."""

import asyncio

import numpy as np
import pytest

from tests.evals.fixed import evaluation_of, evaluator_of
from tests.golden.tables import inputs, rows
from tether.errors import RewardError
from tether.evals.evaluation import joined

AIME = [[204, 17, 204, 204, 17, 18, 204, 204], [5] * 8, [12] * 8]
REFERENCES = [204, 7, 12]


def test_the_golden_row_of_avg_pass_and_maj_comes_out_of_a_whole_evaluation():
    name = "avg@8 / pass@8 / maj"
    (row,), given = rows(name), inputs(name)
    found = evaluation_of(given["answers"], given["reference"])
    metrics = {name: metric.value for name, metric in found.metrics().items()}
    assert found.correct.mean(1).tolist() == row["per-problem mean"]
    ours = {name: metrics[f"eval/{name}"] for name in ("avg@8", "pass@8", "maj@8")}
    assert {**ours, "pass@2": found.pass_at(2).value} == pytest.approx(
        {name: row[name] for name in ("avg@8", "pass@8", "maj@8", "pass@2")}, abs=1e-11
    )
    assert metrics["eval/accuracy"] == metrics["eval/avg@8"]


def test_the_golden_rows_of_aimes_granularity_are_what_thirty_problems_score():
    for row in rows("AIME24 granularity"):
        flat = np.where(np.arange(row["samples"]) < row["correct"], 7, 8).reshape(30, -1)
        found = evaluation_of(flat.tolist(), [7] * 30)
        assert 100 * found.accuracy.value == pytest.approx(row["score"], abs=1e-9)


def test_names_are_not_confused_four_of_sixteen_right():
    found = evaluation_of([[3] * 4 + [8] * 12], [3])
    metrics = {name: metric.value for name, metric in found.metrics().items()}
    assert (metrics["eval/avg@16"], metrics["eval/pass@16"], metrics["eval/maj@16"]) == (0.25, 1.0, 0.0)
    assert found.pass_at(1).value == 0.25


def test_a_tie_goes_to_the_answer_seen_first():
    assert evaluation_of([[3, 8, 8, 3]], [3]).majority.value == 1.0
    assert evaluation_of([[8, 3, 3, 8]], [3]).majority.value == 0.0


def test_an_answer_without_an_answer_does_not_shift_the_others():
    found = evaluation_of([[137, 0, 25], [0, 9, 0]], [137, 9])
    assert found.correct.tolist() == [[True, False, False], [False, True, False]]
    assert found.extracted == (("137", None, "25"), (None, "9", None))
    assert found.status[0] == ("correct", "no_answer", "wrong")
    assert found.no_answer_share == 0.5
    assert {len(row) for row in (*found.extracted, *found.status)} == {3}


def test_every_sample_tells_the_version_that_made_it_when_weights_change_meanwhile():
    found = evaluation_of([[1, 1], [1, 1]], [1, 1], versions=[4, 4, 8, 8])
    assert found.versions.tolist() == [[4, 4], [8, 8]]
    assert [line.versions for line in found.lines(3)] == [(4, 4), (8, 8)]
    assert {(line.step, line.version) for line in found.lines(3)} == {(3, 0)}


def test_a_criterion_that_raises_makes_a_failed_sample_and_no_wrong_one():
    found = evaluation_of([[1, -1, 1, 2], [1, 1, 2, 2]], [1, 1])
    assert found.num_failed == 1
    assert found.status[0] == ("correct", "failed", "correct", "wrong")
    assert found.accuracy.value == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found.lines(0)[0].correct == (True, None, True, False)
    assert found.metrics()["eval/failed"].value == 1.0
    assert "p/0/1 is too much" in found.failure
    assert found.pass_at(4).value == 1.0  # over the one problem that has four


def test_a_problem_of_which_all_samples_failed_is_left_out_and_one_sample_each_likewise():
    found = evaluation_of([[-1, -1], [1, 1], [1, 2]], [1, 1, 1])
    assert found.accuracy.value == 0.75
    assert found.majority.value == 1.0
    alone = evaluation_of([[-1], [1], [2]], [1, 1, 1])
    assert alone.accuracy.value == 0.5
    assert alone.metrics()["eval/accuracy"].count == 2.0


def test_an_evaluation_that_nothing_could_be_judged_of_stops_with_the_first_error():
    with pytest.raises(RewardError, match="all 2 failed, the first so: p/0/0 is too much"):
        evaluation_of([[-1, -1]], [1])


def test_what_has_no_answers_to_vote_on_has_no_majority():
    assert "eval/maj@2" not in evaluation_of([[0, 0]], [1]).metrics()


def test_one_sample_each_has_accuracy_alone():
    names = evaluation_of([[1], [2]], [1, 1]).metrics()
    assert not [name for name in names if "@" in name]


def test_lengths_have_mean_median_and_the_95_percent_point():
    metrics = {name: metric.value for name, metric in evaluation_of(AIME, REFERENCES).metrics().items()}
    assert metrics["eval/length_mean"] == 4.5
    assert metrics["eval/length_median"] == 4.5
    assert metrics["eval/length_p95"] == 8.0
    assert metrics["eval/truncated_fraction"] == pytest.approx(2 / 8)


def test_pieces_joined_are_the_whole():
    async def in_pieces(size):
        return [piece async for piece in evaluator_of(AIME, REFERENCES).pieces(0, {}, size)]

    whole, pieces = evaluation_of(AIME, REFERENCES), asyncio.run(in_pieces(2))
    assert [len(piece.problems) for piece in pieces] == [2, 1]
    assert joined(pieces).lines(0) == whole.lines(0)


def test_a_request_too_few_is_refused():
    evaluator = evaluator_of(AIME, REFERENCES)
    with pytest.raises(ValueError, match="each of 3 prompts needs 8 requests; got 23"):
        type(evaluator)(
            evaluator._engine,
            evaluator._store,
            evaluator._protocol,
            (evaluator._prompts, evaluator._requests[:-1]),
            evaluator._judge,
        )
