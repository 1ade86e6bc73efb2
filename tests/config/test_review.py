"""What is refused or doubted about a recipe's algorithm in the run it belongs to."""

from __future__ import annotations

import pytest

from tether.config.recipe import load
from tether.config.review import doubts_of
from tether.errors import ConfigError

FEW = ["pipeline.prompts_per_step=1", "pipeline.group_size=8"]


def refused(*settings: str) -> str:
    with pytest.raises(ConfigError) as told:
        load("quickstart", settings)
    return str(told.value)


def doubts(*settings: str) -> list[str]:
    return doubts_of(load("quickstart", settings))


@pytest.mark.parametrize("name", ["grpo", "gspo", "sat-grpo", "sat-gspo"])
def test_a_sound_recipe_is_not_doubted(name):
    assert doubts(f"algorithm.preset={name}") == []


def test_sat_over_too_few_responses_is_refused_with_the_number_that_it_takes():
    assert refused("algorithm.preset=sat-gspo", *FEW) == (
        "rule 'sat' at level 'sequence' gates nothing with fewer than 10 responses in its scope; a step has 8: raise "
        "pipeline.prompts_per_step or group_size, or set level = 'token'"
    )
    load("quickstart", ["algorithm.preset=sat-gspo", "pipeline.prompts_per_step=1", "pipeline.group_size=10"])
    load("quickstart", ["algorithm.preset=sat-grpo", *FEW])


def test_what_the_paper_ran_all_the_same_is_a_doubt():
    (doubt,) = doubts("algorithm.preset=paper/sat-gspo", *FEW)
    assert "gates nothing with fewer than 10 responses" in doubt


def test_a_micro_batch_that_may_hold_too_few_long_answers_is_a_doubt():
    (doubt,) = doubts("algorithm.preset=paper/sat-gspo", "engine.max_tokens=32", "trainer.token_budget=288")
    assert doubt.startswith("a micro-batch of longest answers holds 9 responses, and below 10 none is ever gated")
    assert doubts("algorithm.preset=paper/sat-gspo", "engine.max_tokens=32", "trainer.token_budget=320") == []


def test_sat_against_the_anchor_of_a_single_update_is_refused():
    told = refused("algorithm.preset=sat-grpo", "algorithm.proximal=anchor", "algorithm.corrections=[{name='tis'}]")
    assert told.startswith(
        "rule 'sat' measures how far ratios lie from 1, and against proximal 'anchor' with one update"
    )
    assert told.endswith("use proximal = 'rollout'")


def test_ppo_against_the_anchor_of_a_single_update_is_a_doubt():
    (doubt,) = doubts("algorithm.preset=grpo", "algorithm.proximal=anchor", "algorithm.corrections=[{name='tis'}]")
    assert doubt.startswith("proximal 'anchor' with one update a batch makes every clipped ratio 1: nothing is ever")


def test_doubts_stand_in_the_resolved_recipe():
    settings = ["algorithm.preset=grpo", "algorithm.proximal=anchor", "algorithm.corrections=[{name='tis'}]"]
    recipe = load("quickstart", settings)
    assert recipe.resolved()["derived"]["doubts"] == doubts_of(recipe) != []
