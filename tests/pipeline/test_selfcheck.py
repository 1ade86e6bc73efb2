"""Runs whose engine or learner is wrong in one way: each is stopped by the check that is named for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tether.config.build import build, placed
from tether.config.recipe import load
from tether.core.aggregation import SeqMeanTokenMean
from tether.core.loss import policy_loss
from tether.errors import ConfigError, SelfCheckError
from tether.journal import RunView
from tether.journal.writer import RunWriter
from tether.pipeline.controller import Controller

from . import doctored  # noqa: F401  (registers the engine)

QUICK = (
    "run.steps=2",
    "run.device=cpu",
    "run.samples=0",
    "pipeline.lag=1",
    "pipeline.prompts_per_step=2",
    "pipeline.group_size=5",
    "eval.prompts=0",
    "checkpoint.every=0",
    "trainer.lr=2e-3",
    "trainer.warmup=0",
)


def run(out: Path, *settings: str, tamper: Callable[[Controller], object] = lambda controller: None) -> RunView:
    """A whole run, tampered with before it begins."""
    recipe = load(settings=(*QUICK, *settings))
    with placed(recipe) as parts:
        controller = build(recipe, parts, partial(RunWriter, out))
        tamper(controller)
        with controller.writer:
            recipe.placement.run(controller.run())
    return RunView(out)


def doctored_run(out: Path, fault: str, *settings: str, sound_loads: int = 0) -> RunView:
    engine = ("engine.kind=doctored", f"engine.fault={fault}", f"engine.sound_loads={sound_loads}")
    return run(out, *engine, *settings)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return doctored_run(tmp_path_factory.mktemp("sound") / "run", "none")


# --- a sound run


def test_every_publication_is_probed_and_told_once(sound):
    told = [(event.event, event.step, event.version) for event in sound.events]
    assert [event for event in told if event[0] == "check"] == [("check", v, v) for v in range(3)]
    assert told[:3] == [("start", 0, 0), ("publish", 0, 0), ("check", 0, 0)]
    first, *later = sound.of("check")
    always = {
        f"probe/{name}"
        for name in (
            *("abs_d_mean", "distance", "floor", "allowed", "abs_d_trained", "ratio_deviation", "close_looks"),
            *("p95", "p95_allowed", "tail_fraction", "tail_floor"),
        )
    } | {"probe/rerouted_share/engine-0"}  # the recipe replays the engine's routes
    assert set(first.metrics) == always
    for event in later:
        assert set(event.metrics) - {"probe/progress"} == always | {
            "probe/abs_d_previous",
            "probe/moved",
            "probe/is_undecided",
        }
        assert ("probe/progress" in event.metrics) == (event.metrics["probe/is_undecided"].value == 0)


def test_the_engine_stands_at_the_new_version_within_the_floor(sound):
    for event in sound.of("check"):
        number = {name: metric.value for name, metric in event.metrics.items()}
        assert number["probe/distance"] <= number["probe/allowed"] / 2
        assert number["probe/ratio_deviation"] <= number["probe/allowed"]
        assert number.get("probe/progress", 1.0) == pytest.approx(1.0, abs=0.3)
    assert any("probe/progress" in event.metrics for event in sound.of("check"))


def test_a_run_that_is_probed_trains_as_one_that_is_not(sound, tmp_path):
    unwatched = doctored_run(tmp_path / "run", "none", "checks.prompts=0")
    assert not unwatched.of("check")
    for one, other in zip(sound.steps, unwatched.steps, strict=True):
        same = [n for n in one.metrics if n == "time/virtual_s" or not n.startswith(("time/", "throughput/"))]
        assert [one.metrics[n] for n in same] == [other.metrics[n] for n in same]
    assert [(line.id, line.used_s) for line in sound.ledger] == [(line.id, line.used_s) for line in unwatched.ledger]


@pytest.mark.parametrize(
    "formats",
    [
        ("engine.dtype=float32",),
        ("trainer.dtype=bfloat16", "engine.dtype=float32"),
        ("engine.temperature=0.7", "trainer.share_prompt=off", "trainer.token_budget=40"),
    ],
    ids=str,
)
def test_no_false_alarm_in_other_formats(tmp_path, formats):
    checks = doctored_run(tmp_path / "run", "none", *formats).of("check")
    assert len(checks) == 3
    for event in checks:
        assert event.metrics["probe/distance"].value <= event.metrics["probe/allowed"].value / 2


# --- engines that are wrong


FAULTS = [
    ("stale", 1, r"'(agreement|nearest)' failed at version 1: .*It still answers as the version before"),
    ("first half", 1, r"'(agreement|nearest)' failed at version 1: .*It may have taken a part of the tensors"),
    ("without one", 1, r"'(agreement|nearest)' failed at version 1: .*It may have taken a part of the tensors"),
    ("swapped", 0, r"'agreement' failed at version 0: .*puts each tensor where its name says"),
    ("wrong positions", 0, r"'agreement' failed at version 0: .*the model and configuration of model\.path"),
    ("rounded to float8", 0, r"'agreement' failed at version 0: .*raise checks\.tolerance"),
    ("shifted", 0, r"'alignment' failed at version 0: Its log-probs stand one position off"),
    ("rounded numbers", 0, r"'precision' failed at version 0: .*log-probs must be float32"),
    ("one more id", 0, r"'ids' failed: \d+ of 32 completions are not what was sampled; 'probe/0' "),
    ("one row wrong", 0, r"'(spread|agreement)' failed at version 0"),
    (
        "old cache",
        1,
        r"'versions' failed at version 1: prompts sampled after the load were read over a cache of version 0",
    ),
    ("old versions", 1, r"'versions' failed at version 1: tokens sampled after the load are stamped 0\."),
    ("another fingerprint", 0, r"'acknowledgement' failed at version 0: .*0{12}"),
]


@pytest.mark.parametrize(
    ("fault", "sound_loads", "match", "dtype"),
    [*[(*fault, "bfloat16") for fault in FAULTS], *[(*fault, "float32") for fault in FAULTS[:2]]],
    ids=[*[fault for fault, *_ in FAULTS], *[f"{fault}, float32" for fault, *_ in FAULTS[:2]]],
)
def test_a_wrong_engine_is_caught_by_the_named_check(tmp_path, fault, sound_loads, match, dtype):
    with pytest.raises(SelfCheckError, match=match):
        doctored_run(tmp_path / "run", fault, f"engine.dtype={dtype}", sound_loads=sound_loads)
    view = RunView(tmp_path / "run")
    assert view.status == "failed"
    assert view.last("fail").note.startswith("self-check ")


def test_weights_rounded_to_bfloat16_are_caught_in_an_engine_that_says_float32(tmp_path):
    with pytest.raises(SelfCheckError, match=r"'agreement' failed at version 0: .*computes in float32"):
        doctored_run(tmp_path / "run", "rounded to bfloat16", "engine.dtype=float32")


def test_log_probs_before_the_temperature_are_caught_and_named(tmp_path):
    with pytest.raises(SelfCheckError, match=r"'agreement' failed at version 0: .*before the temperature"):
        doctored_run(tmp_path / "run", "raw", "engine.temperature=0.8")


def test_at_temperature_1_raw_log_probs_are_as_good_as_any(tmp_path):
    assert doctored_run(tmp_path / "run", "raw", "run.steps=1").status == "finished"


# --- learners that are wrong


def test_a_trainer_whose_model_is_configured_otherwise_is_caught(tmp_path):
    def turn(controller):
        controller.loops.learner.trainer.policy.model.base_model.rotary_emb.inv_freq *= 0.5

    with pytest.raises(SelfCheckError, match=r"'agreement' failed at version 0"):
        run(tmp_path / "run", tamper=turn)


def test_a_trainer_that_publishes_something_else_than_it_trains_is_caught(tmp_path):
    def freeze(controller):
        policy = controller.loops.learner.trainer.policy
        first = {name: tensor.clone() for name, tensor in policy.weights().items()}
        policy.weights = lambda: first

    with pytest.raises(
        SelfCheckError, match=r"'ratio' failed at version 1: .*What is published is not what is trained"
    ):
        run(tmp_path / "run", tamper=freeze)


def test_tokens_that_are_not_trained_on_and_reach_the_loss_are_caught(tmp_path, monkeypatch):
    def leaking(policy, tokens, *rest):
        terms = policy_loss(policy, tokens, *rest)
        return terms._replace(loss=terms.loss + 0.0 * (policy.logp - tokens.logp_behavior).sum())

    monkeypatch.setattr("tether.pipeline.trainer.policy_loss", leaking)
    with pytest.raises(SelfCheckError, match=r"self-check 'masks' failed: .* the loss is nan instead of"):
        run(tmp_path / "run")


def test_tokens_that_are_not_trained_on_and_count_are_caught(tmp_path, monkeypatch):
    share = SeqMeanTokenMean.__call__

    def of_everything(self, tokens, denominator):
        return share(self, replace(tokens, trainable=torch.ones_like(tokens.trainable)), denominator)

    monkeypatch.setattr(SeqMeanTokenMean, "__call__", of_everything)
    with pytest.raises(
        SelfCheckError, match=r"self-check 'masks' failed: .* the norm of a parameter's gradient is off"
    ):
        run(tmp_path / "run", "algorithm.preset=grpo")


@pytest.mark.parametrize("preset", ["dr-grpo"])
def test_masks_hold_under_every_kind_of_preset(tmp_path, preset):
    done = run(tmp_path / "run", f"algorithm.preset={preset}", "run.steps=1", "trainer.token_budget=48")
    assert done.status == "finished"


@pytest.mark.parametrize("place", ["ids", "input_ids"])
def test_an_id_that_was_not_sampled_is_not_trained(tmp_path, place):
    def tamper(controller):
        packing = controller.loops.packing

        def step(groups):
            made = type(packing).step(packing, groups)
            inputs = made.micro_batches[0].inputs
            ids = getattr(inputs, place)
            where = -1 if place == "ids" else (int(inputs.row[1]), int(inputs.column[1]))
            ids[where] = (ids[where] + 1) % 8
            return made

        controller.loops.packing = SimpleNamespace(step=step, advantage=packing.advantage)

    with pytest.raises(SelfCheckError, match=r"self-check 'sampled ids' failed: token \d+ of rollout 'g\d/\d'"):
        run(tmp_path / "run", tamper=tamper)


# --- settings


@pytest.mark.parametrize("setting", ["prompts=-1", "tokens=0", "tolerance=0.5"])
def test_settings_that_check_nothing_are_refused(setting):
    with pytest.raises(ConfigError, match=rf"checks\.{setting.partition('=')[0]} must lie in"):
        load(settings=[f"checks.{setting}"])
