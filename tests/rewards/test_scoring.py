"""A reward's answer is a finite number, or an error that names the rollout."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import RewardError
from tether.records import Prompt
from tether.rewards.python import Python
from tether.rewards.scoring import score

PROMPT = Prompt(id="arithmetic/train/0/7", text="1+2=", token_ids=(1,), reference="3")


def giving(value):
    return lambda prompt, response: value


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53) | st.booleans())
def test_any_finite_number_becomes_a_float(value):
    result = score(giving(value), PROMPT, "3", "g0/0")
    assert type(result) is float
    assert result == value


@pytest.mark.parametrize("value", [np.float32(0.5), np.array(0.5), np.array([0.5]), torch.tensor(0.5)])
def test_single_numbers_of_numpy_and_torch_are_numbers(value):
    assert score(giving(value), PROMPT, "3", "g0/0") == 0.5


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, np.float32("nan"), None, "1.0", [1.0], 1j, np.zeros(2), torch.tensor([1.0, 2.0])],
)
def test_anything_else_is_refused_naming_rollout_and_prompt(value):
    with pytest.raises(
        RewardError, match=r"finite number; for rollout g4/1 of prompt arithmetic/train/0/7 reward .*gave"
    ):
        score(giving(value), PROMPT, "3", "g4/1")


def test_exception_of_a_reward_is_named_and_chained():
    reward = Python("tests.rewards.judges:broken")
    with pytest.raises(
        RewardError, match=r"rollout g4/1 .*judges:broken raised ZeroDivisionError: no luck.*'1,2'"
    ) as caught:
        score(reward, PROMPT, "1,2", "g4/1")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_interruption_is_not_taken_for_a_fault_of_the_reward():
    def interrupted(prompt, response):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score(interrupted, PROMPT, "3", "g0/0")
