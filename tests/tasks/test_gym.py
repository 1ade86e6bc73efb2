"""reasoning-gym as a task: made again from a key anywhere, splits that never meet, every own answer right."""

import builtins
import dataclasses
import json
import os
import random
import subprocess
import sys

import pytest

from tether.config.recipe import from_tables
from tether.config.rewarding import criterion_of, reward_of
from tether.errors import ConfigError, DataError, RewardError
from tether.records import Answer, Prompt
from tether.rewards.gym import Gym as Reward
from tether.rewards.gym import Key, make
from tether.rewards.scoring import grade
from tether.tasks.gym import UNREPEATABLE, UNSAFE, Gym
from tether.tasks.splits import is_heldout

QUICK = (
    *("chain_sum", "gcd", "lcm", "leg_counting", "letter_counting", "number_sorting", "prime_factorization"),
    *("basic_arithmetic", "bitwise_arithmetic", "calendar_arithmetic", "caesar_cipher", "spell_backward", "decimal"),
    *("word_sorting", "simple_equations", "base_conversion", "maze", "syllogism", "family_relationships", "ab"),
    *("time_intervals", "count_bits", "products", "number_sequence", "shortest_path", "fraction_simplification"),
)
NAMES = [{"decimal": "decimal_arithmetic"}.get(name, name) for name in QUICK]


def prompt_of(problem, name: str = "gym") -> Prompt:
    return Prompt(
        id="gym/train/0/0",
        text=problem.text,
        token_ids=(1,),
        reference=problem.reference,
        problem=f"{name}/{problem.key}",
    )


def graded(response: str, *, dataset: str = "chain_sum", **options):
    """A response to a problem; ``REF`` stands for the reference in it."""
    problem = Gym(dataset=dataset).problem("train", 0, 0)
    return Reward(**options)(prompt_of(problem), Answer(response.replace("REF", problem.reference)))


@pytest.mark.parametrize("name", NAMES)
def test_own_answers_are_right_and_another_one_is_not(name):
    task, reward = Gym(dataset=name), Reward()
    for index in range(3):
        problem = task.problem("train", 7, index)
        given = reward(prompt_of(problem), Answer(f"<answer>{problem.reference}</answer>"))
        assert (given.value, given.status, given.stage) == (1.0, "correct", "tags, as is")
        assert given.extracted == problem.reference.strip()
    if name != "prime_factorization":  # its scorer raises
        wrong = reward(prompt_of(problem), Answer("<answer>@@</answer>"))
        assert wrong.value < 1
        assert wrong.status == "wrong"


@pytest.mark.parametrize("name", NAMES[:6])
def test_no_question_is_in_both_splits_and_the_same_arguments_give_the_same_problem(name):
    task = Gym(dataset=name)
    train = [task.problem("train", seed, index) for seed in (0, 1) for index in range(20)]
    heldout = [task.problem("heldout", seed, index) for seed in (0, 1) for index in range(6)]
    assert not {p.text for p in train} & {p.text for p in heldout}
    assert all(is_heldout(p.text.removesuffix(f"\n{task.suffix}")) for p in heldout)
    assert train[3] == dataclasses.replace(task).problem("train", 0, 3)
    assert len({p.text for p in train}) > 20, "seeds and indices must not shift into each other"


def test_a_problem_is_the_same_in_another_process_whatever_its_hashes():
    code = (
        "import json, sys; from tether.tasks.gym import Gym\n"
        "print(json.dumps([[p.text, p.reference, p.key] for name in sys.argv[1:] "
        "for p in [Gym(dataset=name).problem('train', 3, 5)]]))"
    )
    ours = [[p.text, p.reference, p.key] for name in NAMES for p in [Gym(dataset=name).problem("train", 3, 5)]]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", code, *NAMES], capture_output=True, text=True, check=True, env=environment
    )
    assert json.loads(done.stdout) == ours


def test_whatever_others_do_with_the_global_random_numbers_changes_nothing():
    before = Gym().problem("train", 0, 11)
    make.cache_clear()
    random.seed(5)
    assert Gym().problem("train", 0, 11) == before


def test_options_reach_the_generator_and_the_reward():
    task = Gym(dataset="chain_sum", options={"min_terms": 7, "max_terms": 7})
    problem = task.problem("train", 0, 0)
    assert problem.text.count("+") + problem.text.count(" - ") >= 6
    assert Reward()(prompt_of(problem), Answer(problem.reference)).value == 1.0


def test_a_mixture_asks_by_weight():
    mix = ({"dataset": "gcd", "weight": 3.0}, {"dataset": "chain_sum", "options": {"max_terms": 3}})
    task = Gym(mix=mix)
    names = [Key.read(task.problem("train", 0, index).key).dataset for index in range(200)]
    assert 120 < names.count("gcd") < 180
    assert set(names) == {"gcd", "chain_sum"}


def test_a_pool_is_asked_again_and_again_and_the_heldout_split_has_no_end():
    task = Gym(pool=4)
    keys = [task.problem("train", 0, index).key for index in range(12)]
    assert keys[:4] * 3 == keys
    assert len(set(keys)) == 4
    assert len({task.problem("heldout", 0, index).key for index in range(6)}) == 6


@pytest.mark.parametrize(
    ("response", "stage"),
    [
        ("I think.\n<answer>1</answer> no: <answer>\n REF </answer>", "tags, as is"),
        (r"so \boxed{REF}", "boxed, as is"),
        ("thus\nREF\n", "last-line, as is"),
        (r"<answer>\boxed{REF}</answer>", "tags, unwrapped"),
        ("<answer>**REF**</answer>", "tags, unwrapped"),
        (r"<answer>$\text{REF}$</answer>", "tags, unwrapped"),
    ],
)
def test_an_answer_is_found_where_it_is_marked_and_read_without_wrappers(response, stage):
    given = graded(response, dataset="leg_counting")
    assert (given.value, given.stage) == (1.0, stage)


def test_a_word_may_have_another_case_and_a_number_another_form():
    problem = Gym(dataset="course_schedule").problem("train", 0, 0)
    given = Reward()(prompt_of(problem), Answer(rf"<answer>\text{{{problem.reference.upper()}}}.</answer>"))
    assert (given.value, given.stage) == (1.0, "tags, case")
    assert graded("<answer>REF.0</answer>", dataset="letter_counting").stage == "tags, number"
    assert graded("<answer>REF.0</answer>", dataset="letter_counting", lenient=False).value < 1
    assert graded("<answer>REF.5</answer>", dataset="letter_counting").value < 1


def test_a_response_that_marks_nothing_has_no_answer():
    for options, response in (({"answer": "tags"}, "REF"), ({"answer": "boxed"}, r"\boxed{REF"), ({}, "  \n ")):
        given = graded(response, **options)
        assert (given.value, given.status, given.extracted) == (0.0, "no_answer", None)


def test_a_score_in_between_counts_unless_it_is_not_wanted():
    assert 0 < graded("<answer>it is REF then</answer>", dataset="leg_counting").value < 1
    assert graded("<answer>it is REF then</answer>", dataset="leg_counting", partial=False).value == 0.0


def test_a_scorer_that_raises_fails_the_rollout():
    problem = Gym(dataset="prime_factorization").problem("train", 0, 0)
    with pytest.raises(RewardError, match=r"rollout g0/1 .* ValueError"):
        grade(Reward(), prompt_of(problem), Answer("<answer>two times three</answer>", id="g0/1"))


def test_prompts_of_other_tasks_and_of_other_versions_are_refused():
    with pytest.raises(DataError, match="judges problems of the task 'gym', by their keys; got the key ''"):
        Reward()(Prompt(id="p", text="?", token_ids=(1,), reference="5"), Answer("5"))
    changed = dataclasses.replace(prompt_of(Gym().problem("train", 0, 0)), text="another question")
    with pytest.raises(DataError, match="take the same version of it in every process"):
        Reward()(changed, Answer("5"))


def test_nothing_is_printed(capfd):
    Gym(dataset="bf").problem("train", 0, 0)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dataset": "chain_sums"}, r"no generator 'chain_sums' in reasoning-gym; near it are chain_sum"),
        ({"dataset": "composite"}, r"no generator 'composite'.*several are a list, task\.mix"),
        ({"options": {"terms": 3}}, r"'chain_sum' has no option 'terms'; it has min_terms, max_terms"),
        ({"options": {"seed": 3}}, r"has no option 'seed'"),
        ({"options": {"min_terms": 9}}, r"'chain_sum' refuses \{'min_terms': 9\}: AssertionError.*its options are"),
        ({"mix": ({"weight": 1.0},)}, r"task\.mix\[0\]\.dataset must be the name of a generator; got None"),
        ({"mix": ({"dataset": "gcd", "weight": 0},)}, r"task\.mix\[0\]\.weight must be a number above 0.*got 0"),
        ({"mix": ({"dataset": "gcd", "share": 1},)}, r"unknown key task\.mix\[0\]\.share"),
        ({"pool": -1}, r"task\.pool must be at least 1, or 0"),
        ({"chat": False, "system": "x"}, "a system message needs chat = true"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_way_out(options, says):
    with pytest.raises(ConfigError, match=says):
        Gym(**options)


@pytest.mark.parametrize("name", sorted({*UNSAFE} - UNREPEATABLE))
def test_generators_that_run_text_or_hang_or_pay_for_anything_need_a_word(name):
    with pytest.raises(ConfigError, match=rf"'{name}' is refused: its scorer .*task\.unsafe = true"):
        Gym(dataset=name)


@pytest.mark.parametrize("name", sorted(UNREPEATABLE))
def test_generators_that_make_another_problem_in_another_process_are_refused_whatever_is_said(name):
    with pytest.raises(ConfigError, match="needs the same problem from the same seed"):
        Gym(dataset=name, unsafe=True)


def test_the_faults_that_generators_are_refused_for_are_still_there():
    halting = make(Key("game_of_life_halting", 5))
    assert halting.score("whatever") == halting.score("False") == 1.0
    assert make(Key("complex_arithmetic", 5)).score("nan") == 1.0
    ran = make(Key("string_insertion", 5)).score(
        "[c for c in " + repr(make(Key("string_insertion", 5)).reference) + "]"
    )
    assert ran > 0, "a list that only eval makes"


def test_a_split_that_is_empty_is_one_message():
    only = Gym(dataset="gcd", options={"min_numbers": 2, "max_numbers": 2, "min_value": 6, "max_value": 7})
    with pytest.raises(DataError, match=r"'gcd' with .* made 400 and none for 'heldout': make it harder"):
        only.problem("heldout", 0, 0)


def test_without_the_package_the_message_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("reasoning_gym"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"pip install 'tether-rl\[gym\]'"):
        Gym()


def test_the_package_is_not_imported_before_the_task_is_made():
    code = "import sys, tether.config.recipe, tether.registry as r; r.TASKS.names(); r.REWARDS.names(); "
    done = subprocess.run([sys.executable, "-c", code + "print('reasoning_gym' in sys.modules)"], capture_output=True)
    assert done.stdout.split() == [b"False"], done.stderr


def test_a_recipe_asks_and_judges_by_it_and_describes_itself():
    tables = {
        "task": {"name": "gym", "dataset": "gcd", "options": {"max_numbers": 3}},
        "reward": {"parts": [{"name": "gym", "answer": "tags", "partial": False}]},
    }
    recipe = from_tables(tables)
    assert recipe.reward.parts[0].reward == Reward(answer="tags", partial=False)
    assert recipe.resolved()["task"]["options"] == {"max_numbers": 3}
    assert isinstance(reward_of(Gym().reward), Reward)
    assert criterion_of(recipe.task).parts[0].label == "gym"
    mixed = from_tables({"task": {"name": "gym", "mix": [{"dataset": "gcd"}, {"dataset": "lcm", "weight": 2.0}]}})
    resolved = mixed.resolved()["task"]
    assert from_tables({"task": resolved}).task == mixed.task
