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
    assert told.startswith("rule 'sat' cuts ratios by what it measures, and against proximal 'anchor' with one update")
    assert told.endswith("use proximal = 'rollout'")


def test_ppo_against_the_anchor_of_a_single_update_is_a_doubt():
    (doubt,) = doubts("algorithm.preset=grpo", "algorithm.proximal=anchor", "algorithm.corrections=[{name='tis'}]")
    assert doubt.startswith("proximal 'anchor' with one update a batch makes every clipped ratio 1: nothing is ever")


REUSED = ["pipeline.updates_per_batch=2", "pipeline.lag=4"]


def test_against_the_anchor_of_several_updates_nothing_is_doubted_or_refused():
    """The ratio is 1 at the first of them only."""
    tis = "algorithm.corrections=[{name='tis'}]"
    for preset in ("grpo", "sat-grpo"):
        assert doubts(f"algorithm.preset={preset}", "algorithm.proximal=anchor", tis, *REUSED) == []
    for preset in ("tis", "icepop", "decoupled"):
        once, reused = doubts(f"algorithm.preset={preset}"), doubts(f"algorithm.preset={preset}", *REUSED)
        assert [doubt for doubt in once if doubt not in reused] == [d for d in once if "every clipped ratio 1" in d]
        assert len(once) == len(reused) + 1


@pytest.mark.parametrize("name", ["seqclip", "opsm"])
def test_a_mask_against_the_anchor_of_several_updates_has_something_to_look_at(name):
    chosen = f"algorithm.corrections=[{{name='tis'}}, {{name='{name}', edge='clipped'}}]"
    assert load("quickstart", ["algorithm.preset=gspo", "algorithm.proximal=anchor", chosen, *REUSED])


@pytest.mark.parametrize("name", ["icepop-old", "grpo-old"])
def test_a_preset_against_the_old_policy_is_refused_with_the_three_ways_to_have_it(name):
    told = refused(f"algorithm.preset={name}")
    assert told.startswith(
        "proximal 'old' needs old log-probs, the trainer's own at the weights that sampled each token: "
    )
    assert all(f"'{strategy}'" in told for strategy in ("snapshots", "evaluator", "interruption"))
    for strategy in ("snapshots", "evaluator"):
        load("quickstart", [f"algorithm.preset={name}", f"old.strategy={strategy}"])


def test_an_edge_against_the_old_policy_asks_for_it_too():
    chosen = ["algorithm.preset=grpo", "algorithm.corrections=[{name='kpop', edge='engine'}]"]
    assert refused(*chosen).startswith("correction 'kpop' needs old log-probs")
    load("quickstart", [*chosen, "old.strategy=snapshots"])


def test_scoring_before_each_update_needs_each_to_be_published():
    told = refused("old.strategy=interruption")
    assert told.endswith(
        "got pipeline.lag = 8 with pipeline.updates_per_batch = 1: set both to 1, or old.strategy = 'snapshots'"
    )
    load("quickstart", ["old.strategy=interruption", "pipeline.lag=1"])
    assert "updates_per_batch = 2" in refused(
        "old.strategy=interruption", "pipeline.lag=2", "pipeline.updates_per_batch=2"
    )


def test_doubts_stand_in_the_resolved_recipe():
    settings = ["algorithm.preset=grpo", "algorithm.proximal=anchor", "algorithm.corrections=[{name='tis'}]"]
    recipe = load("quickstart", settings)
    assert recipe.resolved()["derived"]["doubts"] == doubts_of(recipe) != []


@pytest.mark.parametrize("scale", ["{name='bounded', ceiling=0.01}", "{name='ema'}"])
def test_a_scale_that_a_single_response_cannot_hold_needs_no_ten(scale):
    assert load("quickstart", [*FEW, "algorithm.preset=sat-gspo", f"algorithm.rule.scale={scale}"])


def test_a_lagged_quantile_needs_no_ten_responses_now():
    assert load("quickstart", [*FEW, "algorithm.preset=sat-gspo", "algorithm.measure=lagged"])


def test_a_quantile_for_each_staleness_needs_them_as_a_plain_one_does():
    told = refused(*FEW, "algorithm.preset=sat-gspo", "algorithm.rule.scale=per-staleness")
    assert "gates nothing with fewer than 10 responses" in told


@pytest.mark.parametrize("measure", ["micro-batch", "rank", "lagged"])
def test_a_groups_expectation_is_measured_over_the_step_alone(measure):
    assert refused("algorithm.preset=gepo", f"algorithm.measure={measure}").startswith("a group's expectation is about")


@pytest.mark.parametrize("name", ["seqclip", "opsm"])
def test_a_mask_over_a_ratio_that_is_always_one_is_refused(name):
    chosen = f"algorithm.corrections=[{{name='tis'}}, {{name='{name}', edge='clipped'}}]"
    told = refused("algorithm.preset=gspo", "algorithm.proximal=anchor", chosen)
    assert told.startswith(f"correction {name!r} reads pi / anchor, which one update a batch makes 1 everywhere")


def test_a_gate_over_a_ratio_that_is_always_one_is_refused():
    chosen = "algorithm.rule={name='sat-edge', mismatch='weight'}"
    assert "which is always 1 with proximal 'rollout'" in refused("algorithm.preset=sat-grpo", chosen)


@pytest.mark.parametrize("setting", ["decay=0.0", "window=0"])
def test_an_average_that_is_the_current_policy_is_refused(setting):
    assert " of ewma must lie in " in refused("algorithm.preset=ppo-ewma", f"algorithm.proximal.{setting}")


def test_a_proximal_that_nothing_reads_is_a_doubt():
    (doubt,) = doubts("algorithm.preset=gepo", "algorithm.proximal=ewma")
    assert doubt.startswith("nothing in this recipe reads proximal 'ewma'")


def test_a_replay_is_named_once():
    told = refused("algorithm.preset=grpo", "algorithm.replay=['routing', 'routing']")
    assert told.startswith("algorithm.replay names each replay once")
