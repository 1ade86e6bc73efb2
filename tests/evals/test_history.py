"""What a run's evaluations say together: the best one hides a collapse, the last ones do not."""

import pytest

from tests.evals.fixed import evaluation_of
from tether.evals.history import History
from tether.journal.best import best_last_trailing


def history_of(*right: int, n: int = 10, k: int = 1) -> History:
    """One evaluation each, every 5 steps, with so many of n problems right."""
    history = History()
    for place, count in enumerate(right):
        answers = [[1] * k if row < count else [2] * k for row in range(n)]
        history = history.with_next(5 * place, evaluation_of(answers, [1] * n))
    return history


def numbers(history: History) -> dict[str, float]:
    return {name: metric.value for name, metric in history.metrics().items()}


def test_a_collapse_is_seen_in_last_and_trailing_where_best_is_high():
    found = numbers(history_of(2, 6, 9, 1, 0))
    assert (found["eval/best"], found["eval/best_step"]) == (0.9, 10.0)
    assert found["eval/last"] == 0.0
    assert found["eval/trailing"] == pytest.approx((0.1 + 0.0) / 2)  # ceil(5 / 4) = 2 points
    assert found["eval/accuracy_gain"] == -0.2


@pytest.mark.parametrize(("num", "quarter"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_trailing_is_over_the_last_quarter_rounded_up(num, quarter):
    metric = history_of(*range(num)).metrics()["eval/trailing"]
    assert metric.count == quarter
    assert metric.value == pytest.approx(sum(range(num - quarter, num)) / quarter / 10)


def test_of_equal_bests_the_first_counts():
    assert numbers(history_of(3, 7, 7))["eval/best_step"] == 5.0


def test_the_gain_of_several_samples_is_over_problems_and_not_over_samples():
    one, eight = (history_of(2, 9, n=20, k=k).metrics() for k in (2, 8))
    assert one["eval/accuracy_gain"].value == eight["eval/accuracy_gain"].value == pytest.approx(0.35)
    assert one["eval/accuracy_gain_low"].value == eight["eval/accuracy_gain_low"].value > 0


def test_other_problems_than_at_first_have_no_paired_gain():
    before, after = evaluation_of([[1]], [1]), evaluation_of([[1]], [1], task="other")
    found = History().with_next(0, before).with_next(5, after).metrics()
    assert "eval/accuracy_gain" not in found
    assert "eval/best" in found


def test_without_an_evaluation_there_is_nothing_to_tell():
    assert History().metrics() == {}


def test_the_sentence_says_that_best_is_optimistic_and_needs_three_evaluations():
    told = best_last_trailing(history_of(2, 9, 0).metrics())
    assert told == "best 0.900 at step 5, last 0.000, last quarter 0.000 (the best of 3 evaluations is optimistic)"
    assert best_last_trailing(history_of(2, 9).metrics()) is None
