"""A reward's answer is a finite number, or an error that names the rollout."""

import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import RewardError
from tether.records import Answer, Grade, Prompt
from tether.rewards.python import Python
from tether.rewards.scoring import LARGEST, grade

PROMPT = Prompt(id="arithmetic/train/0/7", text="1+2=", token_ids=(1,), reference="3")


def giving(value):
    return lambda prompt, response: value


@given(st.floats(-LARGEST, LARGEST) | st.integers(-(2**53), 2**53) | st.booleans())
def test_any_number_within_the_limit_becomes_a_float(value):
    result = grade(giving(value), PROMPT, Answer("3", id="g0/0")).value
    assert type(result) is float
    assert result == value


@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), np.array([0.5]), torch.tensor(0.5)])
def test_single_numbers_of_numpy_and_torch_are_numbers(value):
    assert grade(giving(value), PROMPT, Answer("3", id="g0/0")) == Grade(value=0.5)


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, np.float32("nan"), None, "1.0", [1.0], 1j, np.zeros(2), torch.tensor([1.0, 2.0])],
)
def test_anything_else_is_refused_naming_rollout_and_prompt(value):
    with pytest.raises(
        RewardError, match=r"finite number; for rollout g4/1 of prompt arithmetic/train/0/7 reward .*gave"
    ):
        grade(giving(value), PROMPT, Answer("3", id="g4/1"))


def test_exception_of_a_reward_is_named_and_chained():
    reward = Python("tests.rewards.judges:broken")
    with pytest.raises(
        RewardError, match=r"rollout g4/1 .*judges:broken raised ZeroDivisionError: no luck.*'1,2'"
    ) as caught:
        grade(reward, PROMPT, Answer("1,2", id="g4/1"))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_reward_that_leaves_the_program_is_named_and_chained():
    def leaving(prompt, response):
        sys.exit(3)

    with pytest.raises(
        RewardError, match=r"for rollout g4/1 .* raised SystemExit: 3; the response was '1,2'"
    ) as caught:
        grade(leaving, PROMPT, Answer("1,2", id="g4/1"))
    assert isinstance(caught.value.__cause__, SystemExit)


class Stubborn:
    """Refuses to be a number in every way there is."""

    def item(self):
        raise TypeError("no item")

    def __repr__(self):
        raise TypeError("no text")


class Hidden:
    @property
    def item(self):
        raise KeyError("no such thing")


class Endless(float):
    def __float__(self):
        raise OverflowError("no end")


@pytest.mark.parametrize(
    "value",
    [10**400, -(10**400), 10**5000, Stubborn(), Hidden(), Endless(1.0)],
    ids=["large", "small", "huge", "stubborn", "hidden", "endless"],
)
def test_whatever_cannot_be_made_a_float_is_refused_and_never_raises_its_own_error(value):
    with pytest.raises(RewardError, match=r"must be a finite number; for rollout g4/1 .* gave .*; return 0\.0 for"):
        grade(giving(value), PROMPT, Answer("3", id="g4/1"))


def test_a_list_points_to_functions_that_judge_many_at_once():
    with pytest.raises(
        RewardError, match=r"gave \[0\.5\]; a function that judges many responses at once needs batched"
    ):
        grade(giving([0.5]), PROMPT, Answer("3", id="g4/1"))


def test_a_value_that_cannot_be_shown_is_named_by_its_type():
    for value, kind in ((10**5000, "int"), (Stubborn(), "Stubborn")):
        with pytest.raises(RewardError, match=f"gave a {kind} that cannot be shown"):
            grade(giving(value), PROMPT, Answer("3", id="g4/1"))


@pytest.mark.parametrize("value", [1.1e30, -1e31, 1e308, 10.0**300])
def test_a_reward_that_would_leave_float32_is_refused(value):
    with pytest.raises(RewardError, match=r"must lie within \+-1e\+30; for rollout g4/1 .*; scale it, 0 to 1 is usual"):
        grade(giving(value), PROMPT, Answer("3", id="g4/1"))


def test_interruption_is_not_taken_for_a_fault_of_the_reward():
    def interrupted(prompt, response):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        grade(interrupted, PROMPT, Answer("3", id="g0/0"))
