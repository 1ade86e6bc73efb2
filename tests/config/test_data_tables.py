"""Sources of data in a recipe: tables in a list, one table for a list of one, unknown keys named with their place."""

import pytest

from tether.config.recipe import from_tables, load
from tether.config.resume import tables_of
from tether.errors import ConfigError

TASK = ("task.name=dataset", "task.reward=number")


def test_a_table_stands_for_a_list_of_one_and_dots_go_into_it():
    task = load(settings=(*TASK, "task.path=a.jsonl", "task.heldout.path=b.jsonl")).task
    assert [source.path for source in task.heldout] == ["b.jsonl"]
    task = load(settings=(*TASK, "task.sources={path='a', columns={prompt='q'}}")).task
    assert [(source.path, source.columns.prompt) for source in task.sources] == [("a", "q")]


def test_a_resolved_recipe_with_sources_makes_the_same_recipe_again():
    settings = (*TASK, "task.sources=[{path='a', weight=2}, {path='b', weight=1.5, columns={reference='r'}}]")
    recipe = load(settings=settings)
    assert from_tables(tables_of(recipe.resolved()), recipe.name) == recipe


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("task.sources=[{path='a'}, {pfad='b'}]", r"unknown key task\.sources\[1\]\.pfad; .* has path, weight, split"),
        (
            "task.sources=[{path='a', columns={promt='b'}}]",
            r"unknown key task\.sources\[0\]\.columns\.promt; .* has prompt",
        ),
        ("task.sources=[{weight=1.0}]", r"task\.sources\[0\]\.path is not set"),
        ("task.sources=['a']", r"task\.sources\[0\] must be a table; got 'a'"),
        ("task.sources=7", r"task\.sources\[0\] must be a table; got 7"),
        ("task.sources=[{path='a', weight='much'}]", r"task\.sources\[0\]\.weight must be .*; got 'much'"),
    ],
)
def test_what_is_wrong_with_a_source_is_said_with_its_place(setting, message):
    with pytest.raises(ConfigError, match=message):
        load(settings=(*TASK, setting))


def test_a_recipe_is_bound_without_reading_its_data():
    assert load(settings=(*TASK, "task.path=nowhere.jsonl")).resolved()["task"]["path"] == "nowhere.jsonl"
