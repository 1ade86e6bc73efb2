"""Every preset that can run makes updates; those over the whole step do not depend on how it was packed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.presets import NEEDED, RUNNING
from tether.config.presets import PRESETS
from tether.core.algorithm import Algorithm
from tether.models.policy import Policy
from tether.records import Group, Rollout

from .small import Bench, algorithm_of, assert_same_gradient, loaded_of, step_of

OURS = [name for name in RUNNING if PRESETS[name]["measure"] == "step" and "replay" not in PRESETS[name]]


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


def trainer_of(bench: Bench, algorithm: Algorithm, **options):
    reference = Policy(loaded_of("tied", seed=1)) if algorithm.kl is not None else None
    return bench.trainer(algorithm, reference=reference, **options)


def groups_of(bench: Bench, name: str) -> list[Group]:
    """The bench's, with old log-probs between behavior and current where the preset needs them."""
    if name not in NEEDED:
        return bench.groups
    return [replace(g, rollouts=tuple(with_old(r) for r in g.rollouts)) for g in bench.groups]


def with_old(rollout: Rollout) -> Rollout:
    wave = 0.1 * np.sin(np.arange(len(rollout.completion))).astype(np.float32)
    return replace(rollout, logp_old=rollout.completion.logp - wave)


@pytest.mark.parametrize("name", RUNNING)
def test_a_preset_makes_three_updates(dense, name):
    trainer = trainer_of(dense, algorithm_of(name), lr=1e-3)
    trainer.updates = 1
    for number in (2, 3, 4):
        report = trainer.step(step_of(groups_of(dense, name), 110))
        assert report.updated
        assert trainer.updates == number
        assert math.isfinite(report.metrics["policy/loss"].value)
    assert report.metrics["policy/grad_norm"].value > 0


@pytest.mark.parametrize("name", OURS)
def test_a_preset_over_the_step_does_not_depend_on_its_packing(dense, name):
    trials = []
    for budget in (4096, 40):
        trainer = trainer_of(dense, algorithm_of(name))
        trainer.updates = 1
        trials.append(dense.trial(trainer, step_of(groups_of(dense, name), budget)))
    whole, split = trials
    assert_same_gradient(whole.gradient, split.gradient)
    assert whole.number("policy/loss") == pytest.approx(split.number("policy/loss"), rel=1e-3, abs=2e-5)


@pytest.mark.parametrize("name", ["vcpo", "drift-budget"])
def test_a_step_size_scales_the_learning_rate_of_that_update_and_is_told(dense, name):
    plain = dense.trial(trainer_of(dense, algorithm_of("grpo"), lr=1e-3), step_of(dense.groups, 4096))
    scaled = dense.trial(trainer_of(dense, algorithm_of(name), lr=1e-3), step_of(dense.groups, 4096))
    factor = scaled.number("policy/step_size")
    assert 0 < factor < 1
    assert scaled.number("policy/lr") == pytest.approx(factor * plain.number("policy/lr"))
    assert_same_gradient(plain.gradient, scaled.gradient)
    before = dense.state
    for key, weights in plain.weights.items():
        moved = (weights - before[key], scaled.weights[key] - before[key])
        torch.testing.assert_close(factor * moved[0], moved[1], rtol=1e-3, atol=1e-6)


def test_a_step_size_is_measured_over_the_whole_step_whatever_the_recipes_scope(dense):
    sizes = []
    for measure, budget in (("step", 4096), ("micro-batch", 40)):
        trainer = trainer_of(dense, algorithm_of("vcpo", measure=measure))
        sizes.append(trainer.step(step_of(dense.groups, budget)).metrics["policy/step_size"].value)
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-4)


def test_a_reading_that_some_scopes_lack_is_the_mean_of_those_that_have_it(dense):
    """M2PO has no upper end where the budget holds by itself, which is so in some micro-batches and not in others."""
    highs = []
    for budget in (1e-4, 3e-3, 5e-3, 7e-3, 1e-2):
        algorithm = algorithm_of("m2po", measure="micro-batch", rule={"name": "m2po", "budget": budget})
        report = trainer_of(dense, algorithm).step(step_of(dense.groups, 40))
        assert report.updated
        highs.append(report.metrics["m2po/high"].value if "m2po/high" in report.metrics else None)
    assert highs[0] is not None
    assert all(high is None or math.isfinite(high) for high in highs)
