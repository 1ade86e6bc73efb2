from itertools import combinations, pairwise
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.evals.at_k import (
    average_at,
    average_of_each,
    majority_at,
    majority_of_each,
    pass_at,
    pass_of_each,
)


def samples(*counts: tuple[int, int]) -> np.ndarray:
    """One problem a pair: so many right of so many."""
    return np.array([[True] * right + [False] * (total - right) for right, total in counts])


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_right_one(flags, data):
    k = data.draw(st.integers(1, len(flags)))
    choices = list(combinations(flags, k))
    assert pass_of_each(np.array([flags]), k)[0] == pytest.approx(np.mean([any(choice) for choice in choices]))


@given(st.integers(1, 60), st.data())
def test_pass_at_k_never_falls_with_k_and_begins_at_the_average(total, data):
    right = data.draw(st.integers(0, total))
    correct = samples((right, total))
    values = [pass_of_each(correct, k)[0] for k in range(1, total + 1)]
    assert values[0] == pytest.approx(right / total)
    assert values[-1] == float(right > 0)
    assert all(0 <= low <= high + 1e-12 <= 1 + 1e-12 for low, high in pairwise(values))


@pytest.mark.parametrize(("right", "k"), [(1, 1), (1, 5000), (3, 4000), (70, 100), (9_999, 1), (2, 9_998)])
def test_pass_at_k_of_ten_thousand_samples_is_that_of_whole_numbers(right, k):
    total = 10_000
    none, all_of_them = comb(total - right, k), comb(total, k)
    exact = 1 - (none * 10**20 // all_of_them) / 10**20
    assert pass_of_each(samples((right, total)), k)[0] == pytest.approx(exact, rel=1e-10)


def test_one_right_of_four_is_seen_by_all_four_and_two_of_eight_mostly_by_four():
    assert pass_at(samples((1, 4)), 4).value == 1.0
    assert [round(pass_at(samples((2, 8)), k).value, 3) for k in (1, 2, 4)] == [0.25, 0.464, 0.786]


def test_four_right_of_sixteen_are_a_quarter_on_average_and_a_sure_pass():
    correct = samples((4, 16))
    assert average_at(correct).value == 0.25
    assert pass_at(correct, 16).value == 1.0


@pytest.mark.parametrize("k", [0, 5])
def test_more_samples_than_there_are_cannot_be_asked_for(k):
    with pytest.raises(ValueError, match=rf"k = {k}; problem 0 has 4: ask a smaller k"):
        pass_at(samples((1, 4), (2, 4)), k)


def test_a_failed_sample_is_neither_right_nor_wrong():
    correct = samples((2, 4), (4, 4), (1, 4))
    valid = np.array([[True, False, True, False], [True] * 4, [False] * 4])
    assert average_of_each(correct, valid).tolist() == pytest.approx([0.5, 1.0, np.nan], nan_ok=True)
    assert average_at(correct, valid).value == pytest.approx(0.75)
    assert pass_of_each(correct[:2], 2, valid[:2]).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="k = 1; problem 2 has 0"):
        pass_at(correct, 1, valid)


@pytest.mark.parametrize("shape", [(4,), (0, 3), (3, 0)])
def test_what_is_no_table_of_samples_is_refused(shape):
    with pytest.raises(ValueError, match=r"samples are \[n, k\]"):
        average_at(np.zeros(shape, np.bool_))


@pytest.mark.parametrize(
    ("answers", "is_right"),
    [
        (["2", "1", "1"], True),
        (["2", "2", "1"], False),
        (["2", "1", "2", "1"], False),
        (["1", "2", "2", "1"], True),
        ([None, None, "1"], True),
        ([None, None, None], False),
        (["1 ", " 1", "2"], True),
    ],
)
def test_the_most_frequent_answer_decides_and_ties_go_to_the_one_seen_first(answers, is_right):
    right = [answer is not None and answer.strip() == "1" for answer in answers]
    assert majority_of_each([answers], [right]).tolist() == [float(is_right)]


def test_only_the_first_k_samples_vote():
    answers, right = [["1", "2", "2"]], [[True, False, False]]
    assert majority_at(answers, right, 1).value == 1.0
    assert majority_at(answers, right).value == 0.0
    with pytest.raises(ValueError, match="got k = 4, and a problem has 3"):
        majority_at(answers, right, 4)


def test_equal_answers_that_are_written_differently_vote_together_if_the_key_says_so():
    answers, right = [["7", "7", "1/2", "0.5", ".5"]], [[False, False, True, True, True]]
    as_number = {"1/2": 0.5, "0.5": 0.5, ".5": 0.5, "7": 7}
    assert majority_at(answers, right).value == 0.0
    assert majority_at(answers, right, key=as_number.__getitem__).value == 1.0
