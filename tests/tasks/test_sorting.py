"""Lists to be sorted: the same problem again, splits that never meet, answers that are right as a whole."""

import dataclasses
import itertools
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import ConfigError
from tether.models.tiny import ALPHABET
from tether.records import Answer, Prompt
from tether.registry import REWARDS, TASKS
from tether.tasks.sorting import Pupil, Sorting
from tether.tasks.task import Task

SEEDS = st.integers(0, 2**31)
INDICES = st.integers(0, 10**6)
SPLITS = st.sampled_from(["train", "heldout"])


@st.composite
def tasks(draw):
    low = draw(st.integers(1, 8))
    return Sorting(symbols=draw(st.integers(5, 10)), min_length=low, max_length=draw(st.integers(max(low, 6), 24)))


@given(tasks(), SPLITS, SEEDS, INDICES)
def test_same_arguments_give_the_same_problem(task, split, seed, index):
    assert task.problem(split, seed, index) == dataclasses.replace(task).problem(split, seed, index)


@given(tasks(), tasks(), SEEDS, SEEDS)
def test_no_list_of_one_split_is_a_rearrangement_of_one_of_the_other(one, other, seed, another):
    train = {one.problem("train", seed, index).reference for index in range(20)}
    assert not train & {other.problem("heldout", another, index).reference for index in range(20)}


@given(tasks(), SPLITS, SEEDS, INDICES)
def test_demonstration_has_the_digits_of_the_list_in_rising_order(task, split, seed, index):
    problem = task.problem(split, seed, index)
    digits = problem.text.removesuffix(":")
    assert Counter(problem.demonstration) == Counter(digits)
    assert all(a <= b for a, b in zip(problem.demonstration, problem.demonstration[1:], strict=False))
    assert problem.reference == problem.demonstration


@given(tasks(), SPLITS, SEEDS, INDICES)
def test_problem_keeps_to_its_difficulty(task, split, seed, index):
    text = task.problem(split, seed, index).text
    assert text[-1] == ":"
    assert task.min_length <= len(text) - 1 <= task.max_length
    assert set(text[:-1]) <= set("0123456789"[: task.symbols])
    assert set(text) <= set(ALPHABET)


def test_every_length_and_every_digit_occurs():
    problems = [Sorting().problem("heldout", 3, index) for index in range(1000)]
    lengths = Counter(len(problem.reference) for problem in problems)
    assert set(lengths) == set(range(3, 11))
    assert min(lengths.values()) > 60
    digits = Counter("".join(problem.reference for problem in problems))
    assert set(digits) == set("0123456789")
    assert min(digits.values()) > 0.8 * max(digits.values())


def test_problems_of_one_split_differ():
    assert len({Sorting().problem("train", 0, index).text for index in range(500)}) > 480


def test_only_the_whole_answer_is_worth_one():
    exact = REWARDS.build(Sorting().reward)
    prompt = Prompt(id="sorting/train/0/0", text="31415:", token_ids=(1,), reference="11345")
    answers = {"11345": 1.0, "1134": 0.0, "113455": 0.0, "1345": 0.0, "31415": 0.0, "5": 0.0, "": 0.0}
    assert {answer: exact(prompt, Answer(answer)).value for answer in answers} == answers


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symbols": 2}, r"symbols must be 3 to 10; got 2"),
        ({"symbols": 11}, r"symbols must be 3 to 10; got 11"),
        ({"min_length": 0}, r"1 <= min_length <= max_length; got 0 and 10"),
        ({"min_length": 5, "max_length": 4}, r"got 5 and 4"),
        ({"max_length": 1001}, r"max_length must be at most 1000; got 1001"),
        ({"symbols": 3, "min_length": 1, "max_length": 5}, r"at least 100 different answers.*make 55; raise symbols"),
    ],
)
def test_impossible_difficulty_is_refused_with_its_value(options, message):
    with pytest.raises(ConfigError, match=message):
        Sorting(**options)


def test_count_of_answers_is_right():
    answers = {tuple(sorted(digits)) for length in (5, 6) for digits in itertools.product("0123", repeat=length)}
    assert Sorting(symbols=4, min_length=5, max_length=6).num_answers == len(answers)


def test_task_is_found_by_its_name():
    task = TASKS.build("sorting", symbols=5)
    assert task == Sorting(symbols=5)
    assert isinstance(task, Task)


@given(SEEDS, INDICES)
def test_pupil_without_doubts_writes_the_demonstration(seed, index):
    problem = Sorting().problem("train", seed, index)
    assert Pupil(task=Sorting(), unsure=0.0).written(problem.text, random.Random(seed)) == problem.demonstration


@given(SEEDS, INDICES)
def test_pupil_loses_no_digit(seed, index):
    problem = Sorting().problem("train", seed, index)
    written = Pupil(task=Sorting(), unsure=1.0, skill=0.0).written(problem.text, random.Random(seed))
    assert Counter(written) == Counter(problem.demonstration)


def test_pupil_errs_on_its_share_of_the_pairs_and_there_at_its_rate():
    pupil = Pupil(task=Sorting(), unsure=0.35, skill=0.4)
    pairs = [f"{a}{b}" for a in range(10) for b in range(a + 1, 10)]
    shares = [
        sum(pupil.written(f"{pair[::-1]}:", random.Random(i)) == pair for i in range(150)) / 150 for pair in pairs
    ]
    unsure = [share for share in shares if share < 1]
    assert 0.25 < len(unsure) / len(pairs) < 0.45
    assert all(0.25 < share < 0.55 for share in unsure)
