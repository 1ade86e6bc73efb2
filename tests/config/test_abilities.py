"""What a recipe asks of its engine is refused before the start where the engine cannot, with those that can."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.cli.calling import tether
from tether.config.abilities import check_opened, known_capabilities
from tether.config.learning import support_of
from tether.config.recipe import load
from tether.engines.options import SamplingOptions
from tether.errors import ConfigError
from tether.ports import EngineCapabilities
from tether.registry import ENGINES

ALL = ("token_versions", "entropy", "alternatives", "routing", "truncation", "kept", "lora", "seeded", "virtual_time")


@ENGINES.register("modest")
@dataclass(frozen=True, kw_only=True)
class Modest(SamplingOptions):
    """An engine that lacks what it is told to lack; it is never opened.

    >>> Modest(lacks=("routing",)).capabilities.routing
    False
    """

    lacks: tuple[str, ...] = ALL
    """Capabilities that it does not have."""
    is_raw: bool = False
    ways: tuple[str, ...] = ("finish",)

    @property
    def capabilities(self) -> EngineCapabilities:
        has: dict[str, Any] = {name: name not in self.lacks for name in ALL}
        return EngineCapabilities(logp="raw" if self.is_raw else "processed", in_flight=self.ways, **has)

    def open(self, source: str, **others: Any) -> Any:
        raise AssertionError("nothing is opened before it is refused")


def lacking(*names: str) -> tuple[str, ...]:
    return ("engine.kind=modest", f"engine.lacks={list(names)}")


def refused(*settings: str) -> str:
    with pytest.raises(ConfigError) as told:
        load("quickstart", settings)
    return str(told.value)


SUPPORT = "algorithm.replay=[{name='support'}]"
ROUTING = "algorithm.replay=[{name='routing'}]"
ESTR = ("algorithm.preset=estr", "algorithm.corrections.0.threshold=0.1")
FULLY = ("pipeline.regime=fully-async", "pipeline.max_staleness=16", "placement.kind=ray")


@pytest.mark.parametrize(
    ("lacks", "settings", "what", "because"),
    [
        ("token_versions", (), "say which weights made each token", "training"),
        ("entropy", ESTR, "report the entropy of each token's distribution", "correction 'estr'"),
        ("routing", (ROUTING,), "report the experts of each token", "algorithm.replay 'routing'"),
        (
            "kept",
            ("engine.top_p=0.9", SUPPORT),
            "report what each token was sampled among",
            "algorithm.replay 'support'",
        ),
        ("truncation", ("engine.top_k=5", SUPPORT), "sample among some ids only", "engine.top_k, top_p or min_p"),
        ("lora", ("model.lora_rank=4",), "take an adapter in the place of all weights", "model.lora_rank"),
        ("virtual_time", (), "live in virtual time", "placement.kind = 'inline'"),
    ],
)
def test_each_thing_that_is_asked_for_and_lacking_is_refused_with_the_engines_that_can(lacks, settings, what, because):
    told = refused(*lacking(lacks), *settings)
    assert told.startswith(f"engine 'modest' cannot {what}, which {because} asks for; engines that can: ")
    listed = told.partition("engines that can: ")[2].partition(". Set engine.kind to one of them")[0].split(", ")
    assert "torch" in listed
    assert "modest" not in listed  # by default it lacks everything
    load("quickstart", (*lacking(), *settings))


@pytest.mark.parametrize("way", ["keep", "recompute", "restart"])
def test_a_way_to_take_new_weights_that_the_engine_does_not_know_is_refused(way):
    settings = (*lacking(), *FULLY, f"pipeline.in_flight={way}")
    told = refused(*settings)
    assert f"which pipeline.in_flight = '{way}' asks for; engines that can: " in told
    load("quickstart", (*settings, f"engine.ways=['finish', '{way}']"))


@pytest.mark.parametrize("setting", ["temperature=0.8", "top_k=5", "top_p=0.9", "min_p=0.1"])
def test_raw_log_probs_are_refused_wherever_they_are_not_those_sampled_from(setting):
    told = refused(*lacking(), "engine.is_raw=true", f"engine.{setting}", "trainer.allow_support_mismatch=true")
    assert told.startswith("this engine reports log-probs of the model, before temperature and truncation")
    name, _, value = setting.partition("=")
    assert f"{name} {value}" in told or f"{name} = {value}" in told
    assert "--logprobs-mode processed_logprobs" in told
    load("quickstart", (*lacking(), "engine.is_raw=true"))


def test_truncation_without_its_replay_is_refused_unless_it_is_allowed_and_then_doubted():
    told = refused("engine.top_p=0.9", "engine.top_k=20")
    assert told.startswith("the engine samples among some ids only (top_k = 20, top_p = 0.9) and renormalizes")
    assert "Add {name = 'support'} to algorithm.replay" in told
    assert "trainer.allow_support_mismatch = true" in told
    (doubt,) = load("quickstart", ["engine.top_p=0.9", "trainer.allow_support_mismatch=true"]).doubts
    assert doubt.startswith("the engine samples among some ids only (top_p = 0.9)")
    assert load("quickstart", ["engine.top_p=0.9", SUPPORT]).doubts == []


def test_a_replay_of_what_was_not_cut_is_refused():
    assert refused(SUPPORT).startswith("algorithm.replay 'support' has nothing to repeat")


def test_an_engine_that_draws_by_its_batch_and_one_that_nobody_checks_are_doubts():
    (doubt,) = load("quickstart", lacking("seeded")).doubts
    assert doubt.startswith("engine 'modest' draws by what else is in its batch")
    (doubt,) = load("quickstart", (*lacking(), "checks.prompts=0")).doubts
    assert doubt.startswith("checks.prompts = 0 with engine 'modest': nothing proves")
    assert load("quickstart", ["checks.prompts=0"]).doubts == []


def test_a_dry_run_says_what_is_refused_and_what_is_doubted(capsys):
    told = tether(capsys, "train", "--dry-run", "--set", "engine.kind=modest")
    assert (told.code, told.out) == (1, "")
    assert told.err.startswith("error: engine 'modest' cannot say which weights made each token")
    words = [word for setting in lacking("seeded") for word in ("--set", setting)]
    told = tether(capsys, "train", "--dry-run", *words)
    assert told.code == 0, told.err
    assert "# doubtful: engine 'modest' draws by what else is in its batch" in told.out


def test_an_engine_that_can_do_less_once_it_is_open_is_refused_then():
    recipe = load("quickstart", [ROUTING])
    can = recipe.engine.capabilities
    check_opened(can, recipe)
    with pytest.raises(ConfigError, match=r"as it was opened with this model, cannot report the experts of each token"):
        check_opened(replace(can, routing=False), recipe)
    warm = load("quickstart", ["engine.temperature=0.8"])
    with pytest.raises(ConfigError, match=r"before temperature and truncation.*temperature 0\.8"):
        check_opened(replace(can, logp="raw"), warm)


def test_a_kind_that_cannot_be_made_without_settings_is_left_out_of_the_list(monkeypatch):
    def needs_url():
        raise ConfigError("engine.url must be set")

    monkeypatch.setattr(ENGINES, "items", lambda: iter([("wired", needs_url), ("modest", Modest)]))
    assert list(known_capabilities()) == ["modest"]


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


def test_an_engine_that_could_with_other_options_is_not_offered_as_it_is() -> None:
    settings = ("placement.kind=ray", "engine.kind=vllm-server", "algorithm.preset=grpo", "engine.top_p=0.9")
    with pytest.raises(ConfigError, match="torch, vllm, vllm-server with other options"):
        load("quickstart", (*settings, 'algorithm.replay=[{name="support"}]'))
