"""What a recipe asks of its engine, refused before anything starts."""

from __future__ import annotations

import pytest

from tether.config.learning import support_of
from tether.config.recipe import load
from tether.errors import ConfigError

SUPPORT = "algorithm.replay=[{name='support'}]"


def refused(*settings: str) -> str:
    with pytest.raises(ConfigError) as told:
        load("quickstart", settings)
    return str(told.value)


@pytest.mark.parametrize("cut", ["engine.top_p=0.9", "engine.top_k=20", "engine.min_p=0.05"])
def test_truncation_without_its_replay_is_refused_with_the_ways_out(cut: str) -> None:
    told = refused(cut)
    assert told.startswith("the engine samples among some ids only (Truncation(")
    assert "every ratio would be off by the probability that was cut away" in told
    for way_out in (
        "Add {name = 'support'} to algorithm.replay",
        "top_p = 1.0",
        "trainer.allow_support_mismatch = true",
    ):
        assert way_out in told
    load("quickstart", [cut, SUPPORT])
    load("quickstart", [cut, "trainer.allow_support_mismatch=true"])


def test_a_replay_of_nothing_is_refused() -> None:
    assert refused(SUPPORT) == (
        "algorithm.replay 'support' has nothing to repeat: the engine samples from the whole vocabulary. Set "
        "engine.top_k, top_p or min_p, or leave 'support' out of algorithm.replay"
    )


def test_both_replays_go_together() -> None:
    recipe = load("quickstart", ["engine.top_p=0.9", "algorithm.replay=[{name='routing'},{name='support'}]"])
    assert len(recipe.algorithm.replay) == 2
    support = support_of(recipe.algorithm)
    assert support is not None
    assert (support.missing, support.entropy) == ("error", "full")
    assert support_of(load("quickstart").algorithm) is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("engine.top_p=0", r"engine.top_p must lie in \(0, 1\] \(1: all ids\); got 0"),
        ("engine.top_p=1.5", r"engine.top_p must lie in \(0, 1\]"),
        ("engine.min_p=-0.1", r"engine.min_p must lie in 0 .. 1 \(0: all ids\); got -0.1"),
        ("engine.top_k=-1", r"engine.top_k must be 0 \(all ids\) or at most 10000000; got -1"),
        ("algorithm.replay=[{name='support',missing='ignore'}]", "missing"),
        ("algorithm.replay=[{name='support',entropy='none'}]", "entropy"),
    ],
)
def test_limits_that_are_none_are_refused_with_what_they_may_be(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("quickstart", [setting])
