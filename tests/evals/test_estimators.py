import math

import numpy as np
import pytest

from tether.evals.estimators import Z95, paired_difference, proportion


@pytest.mark.parametrize("trials", [1, 10, 1024])
def test_a_proportion_lies_in_its_interval_and_that_in_0_to_1(trials):
    for successes in {0, 1, trials // 2, trials}:
        value, low, high = proportion(successes, trials)
        assert 0.0 <= low <= value <= high <= 1.0
        assert low < high
        assert value == successes / trials


def test_the_interval_is_wilsons():
    """Solves ``|p - x| = z sqrt(x (1 - x) / n)`` for its ends."""
    for successes, trials in [(3, 10), (200, 1024), (1, 7)]:
        p, low, high = proportion(successes, trials)
        for end in (low, high):
            assert abs(p - end) == pytest.approx(Z95 * math.sqrt(end * (1 - end) / trials))


def test_the_interval_shrinks_with_the_square_root_of_the_trials():
    widths = [proportion(n // 4, n).high - proportion(n // 4, n).low for n in (100, 400, 1600)]
    assert widths[0] / widths[1] == pytest.approx(2.0, rel=0.02)
    assert widths[1] / widths[2] == pytest.approx(2.0, rel=0.02)


def test_the_interval_holds_the_truth_about_19_times_in_20():
    draws = np.random.default_rng(0).binomial(200, 0.3, size=4000)
    held = [proportion(int(k), 200).low <= 0.3 <= proportion(int(k), 200).high for k in draws]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_no_trials_give_no_proportion():
    with pytest.raises(ValueError, match="at least one trial; got 0"):
        proportion(0, 0)


def test_a_paired_difference_uses_that_the_prompts_are_the_same():
    before = np.array([True, False] * 50)
    after = before.copy()
    after[:10] = True
    value, low, high = paired_difference(before, after)
    assert value == pytest.approx(0.05)
    unpaired = 2 * Z95 * math.sqrt(2 * 0.25 / 100)
    assert high - low < unpaired / 2


def test_a_paired_difference_is_antisymmetric():
    numbers = np.random.default_rng(1)
    one, other = numbers.random(64) < 0.5, numbers.random(64) < 0.5
    forth, back = paired_difference(one, other), paired_difference(other, one)
    assert (forth.value, forth.low, forth.high) == pytest.approx((-back.value, -back.high, -back.low))


def test_a_few_prompts_of_which_none_changed_are_no_certainty():
    answers = np.array([False, True, True])
    value, low, high = paired_difference(answers, answers)
    assert value == 0.0
    assert low == pytest.approx(-high)
    assert high > 0.3


def test_a_paired_interval_holds_the_true_difference_about_95_times_in_100():
    numbers = np.random.default_rng(2)
    held = []
    for _ in range(4000):
        before, up, down = numbers.random(60) < 0.3, numbers.random(60) < 0.25, numbers.random(60) < 0.1
        after = np.where(before, ~down, up)
        _, low, high = paired_difference(before, after)
        held.append(low <= 0.7 * 0.25 - 0.3 * 0.1 <= high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("one", "other"), [((3,), (4,)), ((0,), (0,)), ((2, 2), (2, 2))])
def test_what_is_not_paired_is_refused(one, other):
    with pytest.raises(ValueError, match=r"two arrays \[n\] of one length n >= 1"):
        paired_difference(np.zeros(one, np.bool_), np.zeros(other, np.bool_))
