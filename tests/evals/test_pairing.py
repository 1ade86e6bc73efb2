import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import DataError
from tether.evals.bootstrap import mean_difference
from tether.evals.estimators import paired_difference
from tether.evals.pairing import holm, matched, paired, sign_flip_p


def two_runs(n: int, k: int, gain: float, numbers: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Right or wrong of two runs on problems of very different difficulty; the second is better by ``gain``."""
    chances = numbers.beta(2, 2, (n, 1)) * (1 - gain)
    return numbers.random((n, k)) < chances, numbers.random((n, k)) < chances + gain


@pytest.mark.parametrize(("n", "k"), [(12, 64), (40, 64)])
def test_p_values_of_equal_runs_are_uniform(n, k):
    numbers = np.random.default_rng(0)
    found = []
    for world in range(400):
        a, b = two_runs(n, k, 0.0, numbers)
        found.append(sign_flip_p(b.mean(1) - a.mean(1), seed=world, flips=400))
    for level in (0.1, 0.3, 0.5):
        assert np.mean(np.array(found) <= level) == pytest.approx(level, abs=0.08)
    assert np.mean(np.array(found) <= 0.05) <= 0.085


def test_p_values_of_coarse_scores_are_too_large_rather_than_too_small():
    numbers = np.random.default_rng(4)
    runs = (two_runs(12, 1, 0.0, numbers) for _ in range(1000))
    found = np.array([sign_flip_p(b[:, 0] * 1.0 - a[:, 0]) for a, b in runs])
    assert all(np.mean(found <= level) <= level + 0.02 for level in (0.01, 0.05, 0.1, 0.3, 0.5))


def test_the_interval_of_a_difference_holds_the_truth_about_19_times_in_20():
    numbers = np.random.default_rng(1)
    held = 0
    for world in range(500):
        a, b = two_runs(30, 4, 0.1, numbers)
        _, low, high = mean_difference(b.mean(1) - a.mean(1), seed=world, resamples=1000)
        held += low <= 0.1 <= high
    assert 0.90 <= held / 500 <= 0.99


def test_pairing_finds_what_two_separate_intervals_would_not():
    numbers = np.random.default_rng(2)
    chances = np.repeat([0.02, 0.5, 0.9], 20)[:, None]
    a, b = numbers.random((60, 16)) < chances, numbers.random((60, 16)) < chances + 0.08
    result = paired(a, b)
    assert result.p < 0.01
    assert result.difference.high - result.difference.low < 0.15
    assert result.num_problems == 60


def test_exact_and_drawn_sign_patterns_agree():
    differences = np.random.default_rng(3).normal(0.1, 0.2, 16)
    exact = sign_flip_p(differences)
    one_more = np.append(differences, 1e-13)
    assert sign_flip_p(one_more) == pytest.approx(exact, abs=0.02)


def test_the_smallest_p_value_is_never_0():
    assert sign_flip_p(np.ones(16)) == 2 / 2**16
    assert sign_flip_p(np.ones(200), flips=999) == 1 / 1000
    assert sign_flip_p(np.zeros(30)) == 1.0
    assert sign_flip_p(np.array([])) == 1.0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=14))
def test_the_other_way_round_is_the_same_with_the_other_sign(pairs):
    a, b = (np.array(column) / 4 for column in zip(*pairs, strict=True))
    forth, back = paired(a, b), paired(b, a)
    assert forth.p == pytest.approx(back.p)
    assert forth.difference.value == pytest.approx(-back.difference.value)


def test_problems_are_matched_by_key_whatever_their_order():
    a, b = {"x": 1.0, "y": 0.0, "z": 0.5}, {"z": 0.25, "x": 0.75, "y": 0.5}
    before, after = matched(a, b)
    assert (after - before).tolist() == [-0.25, 0.5, -0.25]


def test_other_problems_are_an_error_that_says_how_many_are_shared():
    a, b = {"x": 1.0, "y": 0.0}, {"y": 0.5, "z": 0.25, "w": 0.0}
    with pytest.raises(DataError, match="one has 2, the other 3, shared are 1"):
        matched(a, b)
    before, after = matched(a, b, shared_only=True)
    assert (before.tolist(), after.tolist()) == ([0.0], [0.5])
    with pytest.raises(DataError, match="shared are 0"):
        matched({"x": 1.0}, {"y": 1.0}, shared_only=True)
    with pytest.raises(ValueError, match="the same problems; got 2 and 3"):
        paired(np.zeros(2), np.zeros(3))


def test_holm_is_between_the_raw_values_and_bonferronis():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_an_interval_holds_0_where_a_few_problems_that_differ_can_be_chance():
    """Three of 128 problems gained and none lost: p = 0.25."""
    before, after = np.zeros((128, 1), bool), np.zeros((128, 1), bool)
    after[:3] = True
    few = paired(before, after)
    assert few.p == 0.25
    assert few.difference.low < 0 < few.difference.value
    assert few.difference == paired_difference(before[:, 0], after[:, 0])
    of_four = paired(before.repeat(4, 1), np.concatenate([after, before, before, before], 1))
    assert of_four.difference.low < 0 < of_four.difference.high
