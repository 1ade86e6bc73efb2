import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.evals.bootstrap import mean_difference, mean_score
from tether.evals.estimators import paired_difference, proportion, trailing
from tether.evals.student import seeds_mean, t95


def covered(n: int, k: int, spread: float, center: float, num_worlds: int = 500) -> float:
    """How often the interval holds the true mean of problems whose chances are drawn anew in each world."""
    numbers = np.random.default_rng(0)
    held = 0
    for world in range(num_worlds):
        chances = numbers.beta(center * spread, (1 - center) * spread, n)
        scores = numbers.binomial(k, chances) / k
        _, low, high = mean_score(scores, seed=world, resamples=1000)
        held += low <= center <= high
    return held / num_worlds


@pytest.mark.parametrize(
    ("n", "k", "spread", "center"),
    [
        (30, 8, 1.0, 0.3),
        (30, 1, 1.0, 0.5),
        (30, 16, 0.3, 0.85),
        (12, 4, 2.0, 0.5),
        (5, 4, 1.0, 0.5),
        (200, 4, 0.5, 0.1),
    ],
)
def test_the_interval_holds_the_truth_about_19_times_in_20(n, k, spread, center):
    assert 0.90 <= covered(n, k, spread, center) <= 0.995


def test_what_few_or_equal_problems_say_is_no_certainty():
    for scores in (np.ones(30), np.zeros(30), np.ones(1), np.zeros(1), np.full(30, 0.5), np.array([1.0, 1.0, 0.875])):
        value, low, high = mean_score(scores)
        assert 0.0 <= low <= value <= high <= 1.0
        assert high - low > 0.1
    assert mean_score(np.ones(30)) == proportion(30, 30)


def test_right_and_wrong_mirror_each_other():
    scores = np.array([0.0] * 12 + [0.25] * 5 + [1.0] * 3)
    forth, back = mean_score(scores), mean_score(1 - scores)
    assert [forth.low, forth.value, forth.high] == pytest.approx(
        [1 - back.high, 1 - back.value, 1 - back.low], abs=0.01
    )


def test_more_problems_and_more_samples_narrow_the_interval():
    numbers = np.random.default_rng(3)

    def width(n: int, k: int) -> float:
        interval = mean_score(numbers.binomial(k, numbers.beta(2, 2, n)) / k)
        return interval.high - interval.low

    assert width(30, 1) > width(30, 16) > width(300, 16)


def test_a_seed_gives_the_same_interval_again():
    scores = np.random.default_rng(1).random(40)
    assert mean_score(scores, seed=5) == mean_score(scores, seed=5) != mean_score(scores, seed=6)


@pytest.mark.parametrize("n", [30, 1024])
def test_ten_thousand_resamples_take_less_than_a_second(n):
    scores = np.random.default_rng(1).random(n)
    started = time.process_time()
    mean_score(scores)
    assert time.process_time() - started < 1.0


@given(st.lists(st.integers(0, 8), min_size=1, max_size=40))
def test_a_mean_lies_in_its_interval_and_that_where_scores_can_be(counts):
    scores = np.array(counts) / 8
    value, low, high = mean_score(scores, resamples=200)
    assert 0.0 <= low <= value <= high <= 1.0
    assert low < high


@pytest.mark.parametrize("scores", [[], [float("nan")], [0.5, 1.5], [-0.1]])
def test_what_is_no_score_is_refused(scores):
    with pytest.raises(ValueError, match=r"scores lie in 0 \.\. 1|numbers"):
        mean_score(np.array(scores))


def test_few_differences_have_the_interval_of_right_and_wrong_answers():
    before, after = np.array([True, False, False, True]), np.array([True, True, True, False])
    assert mean_difference(after * 1.0 - before * 1.0) == paired_difference(before, after)


def test_students_t_is_that_of_the_tables():
    assert [t95(n) for n in (1, 2, 3, 4, 9, 30, 120)] == pytest.approx(
        [12.7062, 4.30265, 3.18245, 2.77645, 2.26216, 2.04227, 1.97993], abs=1e-4
    )
    with pytest.raises(ValueError, match="at least one degree of freedom; got 0"):
        t95(0)


def test_one_seed_says_nothing_about_others():
    assert seeds_mean([0.4]) == (0.4, -np.inf, np.inf)
    assert seeds_mean([0.4, 0.6]) == pytest.approx((0.5, 0.5 - 1.27062, 0.5 + 1.27062), abs=1e-4)


def test_the_trailing_mean_is_of_the_last_quarter_rounded_up():
    assert trailing([0.1, 0.9, 0.2, 0.4]) == 0.4
    assert trailing([0.1, 0.9, 0.2, 0.4, 0.6]) == pytest.approx(0.5)
    assert trailing([0.3]) == 0.3
    assert trailing([1.0, 2.0], share=1.0) == 1.5
    with pytest.raises(ValueError, match="got n = 0"):
        trailing([])
