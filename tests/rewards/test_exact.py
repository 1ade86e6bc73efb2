"""The exact reward: the last value, character by character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.records import Answer, Prompt
from tether.registry import REWARDS
from tether.rewards.exact import Exact
from tether.tasks.arithmetic import Arithmetic


def prompt_with(reference):
    return Prompt(id="arithmetic/train/0/0", text="1+2=", token_ids=(1,), reference=reference)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("0,0,5", 1.0),
        ("5", 1.0),
        (" 5 ", 1.0),
        ("1,2, 5\n", 1.0),
        ("5,0", 0.0),
        ("5,", 0.0),
        ("", 0.0),
        ("0,55", 0.0),
        ("0,05", 0.0),
        ("0,5.0", 0.0),
        ("0,5=", 0.0),
        ("the answer is 5", 0.0),
    ],
)
def test_only_the_right_last_value_is_worth_one(response, reward):
    assert Exact()(prompt_with("5"), Answer(response)).value == reward


@given(st.integers(0, 10**6), st.text(max_size=20))
def test_what_stands_before_the_last_comma_does_not_count(index, before):
    problem = Arithmetic().problem("train", 0, index)
    assert Exact()(prompt_with(problem.reference), Answer(f"{before},{problem.reference}")).value == 1.0
    assert Exact()(prompt_with(problem.reference), Answer(problem.demonstration)).value == 1.0


def test_response_is_never_evaluated():
    assert Exact()(prompt_with("5"), Answer("2+3")).value == 0.0


def test_exact_is_found_by_its_name():
    assert REWARDS.build("exact") == Exact()
