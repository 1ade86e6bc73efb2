"""The [reward] table: read whole and told again, or refused with the reason."""

import pytest

from tether.config.recipe import from_tables, load
from tether.config.rewarding import bind_rewards, criterion_of, describe_rewards, rewards_of
from tether.errors import ConfigError, UnknownNameError
from tether.records import Answer, Prompt
from tether.rewards.exact import Exact
from tether.rewards.python import Python

PLACE = "tests.rewards.judges:sizes"
TABLE = {
    "decides": "value",
    "parts": [
        {"name": PLACE, "batched": True, "weight": -0.1, "label": "size", "when": "wrong"},
        {"name": "exact", "label": "value"},
        {"name": "number", "weight": 2},
    ],
}


def test_parts_are_bound_with_their_place_in_the_sum():
    rewards = bind_rewards(TABLE)
    assert [part.label for part in rewards.parts] == ["size", "value", "number"]
    assert [part.weight for part in rewards.parts] == [-0.1, 1.0, 2.0]
    assert [part.when for part in rewards.parts] == ["wrong", "always", "always"]
    assert rewards.parts[0].reward == Python(PLACE, batched=True)
    assert rewards.decides == "value"


def test_what_is_told_of_the_rewards_binds_to_the_same():
    rewards = bind_rewards(TABLE)
    assert bind_rewards(describe_rewards(rewards)) == rewards
    recipe = from_tables({"reward": TABLE})
    assert recipe.resolved()["reward"] == describe_rewards(rewards)
    assert from_tables({"reward": recipe.resolved()["reward"]}).reward == rewards


def test_without_a_table_the_reward_of_the_task_counts_and_accuracy_is_its_criterion_in_any_case():
    recipe = load("quickstart")
    assert recipe.reward is None
    assert describe_rewards(recipe.reward) == {}
    assert rewards_of(recipe.reward, recipe.task).parts[0].reward == Exact()
    with_table = from_tables({"reward": TABLE})
    assert rewards_of(with_table.reward, with_table.task) == with_table.reward
    assert criterion_of(with_table.task).parts[0].reward == Exact()


def test_a_path_in_the_place_of_a_name_is_its_label_too():
    rewards = bind_rewards({"parts": [{"name": PLACE, "batched": True}]})
    assert rewards.parts[0].label == PLACE
    prompt = Prompt(id="p", text="1+", token_ids=(1,), reference="3")
    assert rewards(prompt, Answer("abc")).reward == 5.0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("exact", "reward must be a table; got 'exact'"),
        ({"part": []}, r"unknown key reward.part; \[reward\] has parts, decides"),
        ({"parts": {}}, "reward.parts must be a list"),
        ({"parts": []}, "at least one part"),
        ({"parts": [{"weight": 1}]}, r"reward.parts\[0\] must be a name or a table with name"),
        ({"parts": ["exact"], "decides": 1}, "reward.decides must be the label of a part; got 1"),
        ({"parts": ["exact"], "decides": "number"}, "reward.decides is 'number', but the parts are exact"),
        ({"parts": [{"name": "exact", "wieght": 1}]}, r"unknown key reward.parts\[0\].wieght"),
        ({"parts": [{"name": "exact", "weight": "1"}]}, r"reward.parts\[0\].weight must be a number within \+-1e6"),
        ({"parts": [{"name": "exact", "weight": True}]}, "weight must be a number"),
        (
            {"parts": [{"name": "exact", "weight": 0}, {"name": "number", "weight": 0.0}]},
            "each of reward.parts has weight",
        ),
        ({"parts": [{"name": "exact", "weight": float("nan")}]}, "weight must be a number"),
        ({"parts": [{"name": "exact", "weight": 1e7}]}, "weight must be a number"),
        ({"parts": [{"name": "exact", "label": "a/b"}]}, r"reward.parts\[0\].label must be a word without a slash"),
        ({"parts": [{"name": "exact", "when": "cut"}]}, "when must be one of always, right, wrong; got 'cut'"),
        ({"parts": [{"name": "exact", "when": "right"}]}, "decides whether an answer is right"),
        ({"parts": ["exact", "exact"]}, "two parts of the reward are called 'exact'"),
        ({"parts": [{"name": PLACE, "at_once": 0}]}, "at_once .* must be at least 1"),
    ],
)
def test_a_table_that_cannot_work_is_refused(table, message):
    with pytest.raises(ConfigError, match=message):
        bind_rewards(table)


def test_a_reward_that_nobody_knows_is_refused_with_those_there_are():
    with pytest.raises(UnknownNameError, match=r"no reward 'exakt'; there are .*exact"):
        bind_rewards({"parts": ["exakt"]})
