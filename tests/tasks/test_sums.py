"""Sums in a chat: the same problem again, splits that never meet in either order, answers that are right."""

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.config.rewarding import criterion_of
from tether.errors import ConfigError
from tether.records import Answer, Prompt
from tether.registry import REWARDS, TASKS
from tether.rewards.exact import Exact
from tether.rewards.number import Number
from tether.tasks.arithmetic import Arithmetic
from tether.tasks.sums import Sums
from tether.tasks.task import Task

PROMPT = Prompt(id="p", text="?", token_ids=(1,), reference="")
SEEDS = st.integers(0, 2**31)
INDICES = st.integers(0, 10**6)
SPLITS = st.sampled_from(["train", "heldout"])
TASKS_OF_ALL_KINDS = st.builds(
    Sums,
    largest=st.integers(14, 1000),
    operators=st.sampled_from(["+", "-", "*", "+-", "-*+"]),
    suffix=st.sampled_from(["", "Just the number."]),
)


def parts(problem):
    left, operator, right = re.fullmatch(r"What is (\d+) ([-+*]) (\d+)\?.*", problem.text).groups()
    return int(left), operator, int(right)


def unordered(problem):
    left, operator, right = parts(problem)
    return operator, frozenset({left, right})


@given(TASKS_OF_ALL_KINDS, SPLITS, SEEDS, INDICES)
def test_same_arguments_give_the_same_problem(task, split, seed, index):
    assert task.problem(split, seed, index) == dataclasses.replace(task).problem(split, seed, index)


@pytest.mark.parametrize("operators", ["+", "+-*"])
def test_no_operands_are_in_both_splits_in_any_order_whatever_the_seeds(operators):
    task = Sums(operators=operators)
    train = {unordered(task.problem("train", seed, index)) for seed in (0, 1) for index in range(2000)}
    heldout = {unordered(task.problem("heldout", seed, index)) for seed in (0, 5) for index in range(500)}
    assert not train & heldout
    assert len(train) > 5 * len(heldout) > 50


def test_phrasing_moves_no_problem_to_the_other_split():
    plain, phrased = Sums(), Sums(suffix="Just the number.", system="Be brief.")
    for split in ("train", "heldout"):
        for index in range(50):
            assert phrased.problem(split, 0, index).text.startswith(plain.problem(split, 0, index).text)


@given(TASKS_OF_ALL_KINDS, SPLITS, SEEDS, INDICES)
def test_reference_is_the_result_and_never_negative(task, split, seed, index):
    problem = task.problem(split, seed, index)
    left, operator, right = parts(problem)
    assert int(problem.reference) == eval(f"{left}{operator}{right}") >= 0
    assert {left, right} <= set(range(1, task.largest + 1))
    assert operator in task.operators
    assert (
        Number()(dataclasses.replace(PROMPT, reference=problem.reference), Answer(f"It is {problem.reference}.")).value
        == 1.0
    )


def test_every_operator_occurs_as_often():
    operators = [parts(Sums(operators="+-*").problem("train", 0, index))[1] for index in range(900)]
    assert all(240 < operators.count(operator) < 360 for operator in "+-*")


def test_it_is_a_chat_without_demonstrations_unless_told_otherwise():
    problem = Sums(system="Be brief.").problem("train", 0, 0)
    assert (problem.chat, problem.system, problem.demonstration) == (True, "Be brief.", "")
    assert not Sums(chat=False).problem("train", 0, 0).chat


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"largest": 0}, r"largest must be 1 to 1000000; got 0"),
        ({"largest": 13, "operators": "+"}, r"at least 100 different problems.*make 91; raise largest"),
        ({"operators": ""}, r"operators must be some of .*got ''"),
        ({"operators": "/"}, r"got '/'"),
        ({"operators": "++"}, r"each once; got '\+\+'"),
        ({"chat": False, "system": "Be brief."}, r"a system message needs chat = true; got system 'Be brief.'"),
    ],
)
def test_impossible_options_are_refused_with_their_value(options, message):
    with pytest.raises(ConfigError, match=message):
        Sums(**options)


def test_count_of_problems_is_right():
    task = Sums(largest=14, operators="+-")
    seen = {unordered(task.problem(split, 0, i)) for split in ("train", "heldout") for i in range(4000)}
    assert len(seen) == task.num_problems == 210


def test_task_is_found_by_its_name_and_names_its_reward():
    task = TASKS.build("sums", largest=30)
    assert isinstance(task, Task)
    assert isinstance(REWARDS.build(task.reward), Number)


def test_accuracy_is_measured_by_the_criterion_of_the_task_and_by_exact_where_it_names_none():
    assert criterion_of(Sums(reward="exact")).parts[0].reward == Number()
    assert criterion_of(Arithmetic(reward="number")).parts[0].reward == Exact()
