"""Arithmetic chains: the same problem again, splits that never meet, answers that are right."""

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import ConfigError
from tether.models.tiny import ALPHABET
from tether.registry import TASKS
from tether.rewards.exact import last_value
from tether.tasks.arithmetic import Arithmetic, Pupil
from tether.tasks.splits import is_heldout
from tether.tasks.task import Task

SEEDS = st.integers(0, 2**31)
INDICES = st.integers(0, 10**6)
SPLITS = st.sampled_from(["train", "heldout"])


@st.composite
def tasks(draw):
    low = draw(st.integers(1, 6))
    return Arithmetic(
        modulus=draw(st.integers(5, 10)),
        min_operations=low,
        max_operations=draw(st.integers(max(low, 3), 12)),
        operators=draw(st.sampled_from(["+", "-*", "+-*", "*+"])),
    )


def by_python(text, modulus):
    """An independent evaluation: brackets around everything so far, then Python's own arithmetic."""
    expression, values = text[0], []
    for place in range(1, len(text) - 1, 2):
        expression = f"({expression}){text[place : place + 2]}"
        values.append(eval(expression) % modulus)
    return values


@given(tasks(), SPLITS, SEEDS, INDICES)
def test_same_arguments_give_the_same_problem(task, split, seed, index):
    assert task.problem(split, seed, index) == dataclasses.replace(task).problem(split, seed, index)


@given(tasks(), SEEDS, SEEDS, INDICES)
def test_no_text_is_in_both_splits_whatever_the_seeds(task, one, other, index):
    assert not is_heldout(task.problem("train", one, index).text)
    assert is_heldout(task.problem("heldout", other, index).text)


@given(tasks(), SPLITS, SEEDS, INDICES)
def test_demonstration_is_every_running_value_from_left_to_right(task, split, seed, index):
    problem = task.problem(split, seed, index)
    values = by_python(problem.text, task.modulus)
    assert problem.demonstration == ",".join(map(str, values))
    assert problem.reference == str(values[-1]) == last_value(problem.demonstration)


@given(tasks(), SPLITS, SEEDS, INDICES)
def test_problem_keeps_to_its_difficulty(task, split, seed, index):
    text = task.problem(split, seed, index).text
    operators, operands = text[1:-1:2], text[0:-1:2]
    assert text[-1] == "="
    assert task.min_operations <= len(operators) <= task.max_operations
    assert set(operators) <= set(task.operators)
    assert all(1 <= int(operand) < task.modulus for operand in operands)
    assert set(text) <= set(ALPHABET)


def test_problems_of_one_split_differ():
    texts = {Arithmetic().problem("train", 0, index).text for index in range(500)}
    assert len(texts) > 495


def test_every_length_and_every_result_occurs():
    problems = [Arithmetic().problem("heldout", 3, index) for index in range(1000)]
    lengths = [problem.demonstration.count(",") + 1 for problem in problems]
    assert {length: lengths.count(length) > 80 for length in range(4, 11)} == dict.fromkeys(range(4, 11), True)
    results = [problem.reference for problem in problems]
    assert all(results.count(str(value)) > 80 for value in range(7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modulus": 1}, r"modulus must be 2 to 10.*got 1"),
        ({"modulus": 11}, r"modulus must be 2 to 10.*got 11"),
        ({"min_operations": 0}, r"1 <= min_operations <= max_operations; got 0 and 10"),
        ({"min_operations": 5, "max_operations": 4}, r"got 5 and 4"),
        ({"operators": ""}, r"operators must be some of .*got ''"),
        ({"operators": "+/"}, r"got '\+/'"),
        ({"operators": "++"}, r"each once; got '\+\+'"),
        ({"modulus": 2, "min_operations": 1, "max_operations": 2}, r"at least 100 different problems.*make 12;"),
    ],
)
def test_impossible_difficulty_is_refused_with_its_value(options, message):
    with pytest.raises(ConfigError, match=message):
        Arithmetic(**options)


def test_count_of_problems_is_right():
    task = Arithmetic(modulus=4, min_operations=2, max_operations=3, operators="+-")
    assert task.num_problems == 3**3 * 2**2 + 3**4 * 2**3


def test_task_is_found_by_its_name():
    task = TASKS.build("arithmetic", modulus=5)
    assert task == Arithmetic(modulus=5)
    assert isinstance(task, Task)
    assert task.reward == "exact"


@given(SEEDS, INDICES)
def test_pupil_without_doubts_writes_the_demonstration(seed, index):
    pupil = Pupil(task=Arithmetic(), unsure=0.0)
    problem = pupil.task.problem("train", seed, index)
    assert pupil.written(problem.text, random.Random(index)) == problem.demonstration


@given(SEEDS, INDICES)
def test_pupil_writes_the_right_form(seed, index):
    pupil = Pupil(task=Arithmetic())
    problem = pupil.task.problem("train", seed, index)
    assert len(pupil.written(problem.text, random.Random(index))) == len(problem.demonstration)


def test_pupil_errs_on_its_share_of_the_table_and_there_at_its_rate():
    pupil = Pupil(task=Arithmetic(), unsure=0.35, skill=0.4)
    entries = [(f"{v}{op}{x}=", v) for v in range(7) for op in "+-*" for x in range(1, 7)]
    shares = []
    for text, _ in entries:
        right = str(pupil.task.running_values(text)[0])
        shares.append(sum(pupil.written(text, random.Random(i)) == right for i in range(150)) / 150)
    unsure = [share for share in shares if share < 1]
    assert 0.25 < len(unsure) / len(entries) < 0.45
    assert all(0.25 < share < 0.55 for share in unsure)
