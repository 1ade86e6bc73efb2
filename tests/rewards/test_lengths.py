"""Rewards for the length of an answer, against the formulas and by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.rewards.composition import Composition, Part
from tether.rewards.cosine import Cosine
from tether.rewards.overlong import Overlong
from tether.rewards.repetition import Repetition
from tether.rewards.truncated import Truncated

PROMPT = Prompt(id="p", text="?", token_ids=(1,), reference="3")
LENGTHS = st.integers(0, 3000)


def value(reward, num_tokens, *, is_cut=False, text="..."):
    return reward(PROMPT, Answer(text, num_tokens, is_cut)).value


@pytest.mark.parametrize(
    ("num_tokens", "reward"),
    [(0, 0.0), (16384, 0.0), (16385, -1 / 4096), (18432, -0.5), (20479, -4095 / 4096), (20480, -1.0), (20481, -1.0)],
)
def test_overlong_is_the_soft_punishment_of_dapo(num_tokens, reward):
    assert value(Overlong(limit=20480, buffer=4096), num_tokens) == reward


@given(st.integers(1, 2000), st.data(), LENGTHS)
def test_overlong_never_rises_with_the_length_and_lies_between_its_ends(limit, data, num_tokens):
    buffer = data.draw(st.integers(0, limit))
    reward = Overlong(limit=limit, buffer=buffer)
    here, next_ = value(reward, num_tokens), value(reward, num_tokens + 1)
    assert -1.0 <= next_ <= here <= 0.0
    assert (here == 0.0) == (num_tokens <= limit - buffer)
    assert (here == -1.0) == (num_tokens > limit or (num_tokens == limit and buffer > 0))


def test_overlong_without_a_buffer_is_a_step():
    assert [value(Overlong(limit=10, buffer=0), n) for n in (0, 10, 11)] == [0.0, 0.0, -1.0]


def test_overlong_counts_tokens_and_does_not_ask_whether_the_answer_was_cut():
    assert value(Overlong(limit=100, buffer=20), 50, is_cut=True) == 0.0
    assert value(Overlong(limit=100, buffer=20), 90, is_cut=True) == -0.5


@pytest.mark.parametrize(("limit", "buffer"), [(0, 0), (10, 11), (10, -1)])
def test_overlong_refuses_a_buffer_that_does_not_fit(limit, buffer):
    with pytest.raises(ConfigError, match=f"got limit {limit} and buffer {buffer}"):
        Overlong(limit=limit, buffer=buffer)


@given(st.integers(1, 2000), st.floats(-20, 20), st.floats(-20, 20), LENGTHS)
def test_cosine_is_its_formula_below_the_limit_and_the_other_number_from_there(limit, at_zero, at_limit, n):
    reward = Cosine(limit=limit, at_zero=at_zero, at_limit=at_limit, exceeded=-33.0)
    swing = 0.5 * (at_zero - at_limit) * (1.0 + math.cos(n / limit * math.pi))
    assert value(reward, n) == pytest.approx(at_limit + swing if n < limit else -33.0)
    assert value(reward, n, is_cut=True) == -33.0


def test_cosine_begins_at_one_end_and_comes_near_the_other():
    reward = Cosine(limit=1000, at_zero=-10.0, at_limit=0.0)
    assert value(reward, 0) == -10.0
    assert value(reward, 500) == pytest.approx(-5.0)
    assert value(reward, 999) == pytest.approx(0.0, abs=1e-4)
    assert value(reward, 1000) == 0.0
    assert reward(PROMPT, Answer("", 1000)).status == "exceeded"


def test_the_paper_s_cosine_reward_is_two_parts():
    limit = 100
    decides = Part(label="math", reward=lambda prompt, answer: float(answer.text == "3"), weight=0.0)
    right = Cosine(limit=limit, at_zero=2.0, at_limit=1.0, exceeded=-10.0)
    wrong = Cosine(limit=limit, at_zero=-10.0, at_limit=0.0, exceeded=-10.0)
    composition = Composition(
        (decides, Part(label="right", reward=right, when="right"), Part(label="wrong", reward=wrong, when="wrong"))
    )

    def reward(text, n, *, is_cut=False):
        return composition(PROMPT, Answer(text, n, is_cut)).reward

    assert [reward("3", n) for n in (0, 50)] == pytest.approx([2.0, 1.5])
    assert [reward("4", n) for n in (0, 50)] == pytest.approx([-10.0, -5.0])
    assert reward("3", 50, is_cut=True) == reward("4", 100) == -10.0


def test_cosine_refuses_a_limit_without_room():
    with pytest.raises(ConfigError, match="limit of the reward 'cosine' must be at least 1 token; got 0"):
        Cosine(limit=0, at_zero=1.0, at_limit=0.0)


@pytest.mark.parametrize(
    ("text", "size", "reward"),
    [
        ("", 3, 0.0),
        ("a b", 3, 0.0),
        ("a b c", 3, 0.0),
        ("a a a", 1, -2 / 3),
        ("A b a B", 2, -1 / 3),
        ("a  b\na\tb", 2, -1 / 3),
        ("ж щ ж щ", 2, -1 / 3),
        ("x " * 100, 3, -97 / 98),
    ],
)
def test_repetition_counts_the_runs_that_came_before(text, size, reward):
    assert value(Repetition(size=size), 0, text=text) == pytest.approx(reward)


def test_repetition_of_a_script_without_spaces_is_seen_by_its_characters():
    text = "因此因此因此"
    assert value(Repetition(size=2), 0, text=text) == 0.0
    assert value(Repetition(size=2, units="characters"), 0, text=text) == pytest.approx(-3 / 5)


@given(st.text(max_size=60), st.integers(1, 5), st.sampled_from(["words", "characters"]))
def test_repetition_lies_above_minus_one_and_is_0_where_nothing_comes_twice(text, size, units):
    found = value(Repetition(size=size, units=units), 0, text=text)
    assert -1.0 < found <= 0.0
    numbered = " ".join(f"{n}." for n in range(30))
    assert value(Repetition(size=size), 0, text=numbered) == 0.0


@pytest.mark.parametrize("size", [0, 101])
def test_repetition_refuses_runs_of_no_sensible_size(size):
    with pytest.raises(ConfigError, match=r"size of the reward 'repetition' must lie in 1 \.\. 100"):
        Repetition(size=size)


def test_truncated_is_about_the_end_alone():
    assert Truncated()(PROMPT, Answer("3", 0, is_cut=True)) == Grade(value=-1.0, status="cut")
    assert Truncated()(PROMPT, Answer("3", 9999)) == Grade(value=0.0, status="ended")
