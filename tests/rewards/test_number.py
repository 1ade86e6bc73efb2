"""The number reward: the value of the last number counts, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import DataError
from tether.records import Answer, Prompt
from tether.registry import REWARDS
from tether.rewards.number import Number, last_number


def prompt_with(reference):
    return Prompt(id="sums/train/0/0", text="What is 7 + 5?", token_ids=(1,), reference=reference)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("12", 1.0),
        ("7 + 5 = 12.", 1.0),
        ("The answer is **12**!", 1.0),
        ("12.0", 1.0),
        ("012", 1.0),
        ("7+5=12", 1.0),
        ("10, no: 12", 1.0),
        ("12 or 13", 0.0),
        ("12 = 7 + 5", 0.0),
        ("12.5", 0.0),
        ("-12", 0.0),
        ("1,012", 0.0),
        ("112", 0.0),
        ("1 2", 0.0),
        ("twelve", 0.0),
        ("¹²", 0.0),
        ("١٢", 0.0),
        ("", 0.0),
    ],
)
def test_only_the_right_last_number_is_worth_one(response, reward):
    assert Number()(prompt_with("12"), Answer(response)).value == reward


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("it is -3", "-3"),
        ("it is \u22123", "-3"),
        ("(-3)", "-3"),
        ("8-3", "3"),
        ("8 - 3", "3"),
        ("(8)-3", "3"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("1,234", "1234"),
        ("12,34", "34"),
        ("7,5", "5"),
        ("3.10", "3.1"),
        ("12.", "12"),
        ("1.2.3", "3"),
        ("0" * 5000 + "7", "7"),
        ("no", None),
    ],
)
def test_a_number_is_read_as_it_is_written(text, number):
    assert last_number(text) == number


@given(st.integers(-(10**30), 10**30), st.text(max_size=20))
def test_what_stands_before_the_last_number_does_not_count(value, before):
    assert last_number(f"{before} {value}") == str(value)


def test_a_cut_completion_is_never_asked_about():
    assert Number.needs_end


def test_a_reference_without_a_number_is_refused():
    with pytest.raises(DataError, match="the reference 'twelve' has none"):
        Number()(prompt_with("twelve"), Answer("12"))


def test_reward_is_found_by_its_name():
    assert REWARDS.build("number") == Number()
