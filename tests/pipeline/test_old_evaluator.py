"""A second model that scores rollouts as they are sampled, at the weights that sampled them."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace

import pytest
import torch

from tether.config import learning
from tether.config.learning import evaluator_of, learner_of, makers_of, versions_held
from tether.config.recipe import load
from tether.errors import ConfigError, OldVersionError
from tether.models.policy import Policy
from tether.pipeline.capture import LEARNER_FILE
from tether.pipeline.old_evaluator import Evaluated, OldEvaluator
from tether.weights.memory import MemoryStore

from . import past as pasts
from .past import BUDGET, assert_old, at_versions, scorer_of, weights_of
from .small import Bench, loaded_of, step_of

MOST = 5


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("float32", keep=MOST)


def evaluated(store):
    return lambda policy, _: Evaluated(policy, store, MOST, 4)


def evaluator(bench: Bench, store) -> OldEvaluator:
    other = copy.deepcopy(bench.loaded.model)
    other.requires_grad_(False)
    return OldEvaluator(scorer_of(Policy(replace(bench.loaded, model=other))), store)


def lived(bench: Bench, store, updates: int = 3):
    learner, held = pasts.learner_of(bench, evaluated(store)), {}
    second = evaluator(bench, store)
    for n in range(updates + 1):
        asyncio.run(learner.publish())
        held[n] = weights_of(learner)
        for publication in asyncio.run(learner.old_publications()):
            asyncio.run(second.load(publication))
        if n < updates:
            learner.trainer.step(step_of(bench.groups, BUDGET))
    return learner, second, held


def scored(second: OldEvaluator, groups):
    return [
        replace(g, rollouts=tuple(replace(r, logp_old=asyncio.run(second.score(r))) for r in g.rollouts))
        for g in groups
    ]


def test_what_it_scores_arrives_at_the_trainer_at_each_tokens_own_version(dense, store):
    learner, second, held = lived(dense, store)
    step = step_of(scored(second, at_versions(dense.groups, (0, 1, 2))), BUDGET)
    assert_old(dense, held, learner.old.laid(step, 3), 3)
    metrics = asyncio.run(learner.step(step)).metrics
    assert metrics["mismatch/policy_abs_mean"].value > 0
    assert metrics["old/versions"].value == 4.0
    assert second.busy_s > 0


def test_a_rollout_that_comes_without_is_an_error(dense, store):
    learner, _, _ = lived(dense, store)
    with pytest.raises(OldVersionError, match="the evaluator must score a rollout before its group is taken"):
        asyncio.run(learner.step(step_of(at_versions(dense.groups, (1, 2)), BUDGET)))
    fresh = step_of(at_versions(dense.groups, (3,)), BUDGET)
    assert asyncio.run(learner.step(fresh)).metrics["mismatch/policy_max"].value == 0.0


def test_a_version_that_was_forgotten_or_never_loaded_is_an_error(dense, store):
    _, second, _ = lived(dense, store)
    asyncio.run(second.forget(older_than=2))
    assert second.versions == (2, 3)
    (group, *_) = at_versions(dense.groups, (1,))
    with pytest.raises(OldVersionError, match="version 1, and held are 2, 3: load every publication before"):
        asyncio.run(second.score(group.rollouts[0]))


def test_a_rollout_of_no_token_has_no_score(dense, store):
    _, second, _ = lived(dense, store, updates=1)
    rollout = dense.groups[0].rollouts[0]
    c = rollout.completion
    nothing = replace(c, token_ids=c.token_ids[:0], logp=c.logp[:0], entropy=c.entropy[:0], version=c.version[:0])
    assert len(asyncio.run(second.score(replace(rollout, completion=nothing)))) == 0


def test_only_versions_of_which_a_token_may_come_stay_published(dense, store):
    learner, _, _ = lived(dense, store)
    assert [p.version for p in asyncio.run(learner.old_publications())] == [0, 1, 2, 3]
    learner.trainer.step(step_of(dense.groups, BUDGET))
    asyncio.run(learner.publish(live=3))
    assert [p.version for p in asyncio.run(learner.old_publications())] == [3, 4]


def test_a_run_that_goes_on_publishes_the_same_past_again(dense, store, tmp_path):
    learner, second, _ = lived(dense, store)
    torch.save(learner.captured().state, tmp_path / LEARNER_FILE)
    groups = at_versions(dense.groups, (0, 1, 2))
    wanted = scored(second, groups)
    fresh = MemoryStore("float32", keep=MOST)
    again = pasts.learner_of(dense, evaluated(fresh))
    asyncio.run(again.restore(tmp_path))
    third = evaluator(dense, fresh)
    for publication in asyncio.run(again.old_publications()):
        asyncio.run(third.load(publication))
    got = scored(third, groups)
    for a, b in zip(wanted, got, strict=True):
        assert all((x.logp_old == y.logp_old).all() for x, y in zip(a.rollouts, b.rollouts, strict=True))


async def nothing_evaluated(*_):
    raise NotImplementedError


def test_a_recipe_makes_both_sides(monkeypatch):
    monkeypatch.setattr(learning, "_evaluator", lambda *_: nothing_evaluated)  # no engine is opened
    recipe = load("quickstart", ["old.strategy=evaluator", "trainer.dtype=bfloat16", "pipeline.lag=4"])
    assert versions_held(recipe) == 3
    store = MemoryStore("bfloat16", keep=versions_held(recipe))
    learner = learner_of(recipe, MemoryStore("float32"), "cpu", store)
    second = evaluator_of(recipe, store, "cpu")
    asyncio.run(learner.publish())
    (publication,) = asyncio.run(learner.old_publications())
    asyncio.run(second.load(publication))
    assert {w.dtype for w in store.fetch(publication).values() if w.is_floating_point()} == {torch.bfloat16}
    with pytest.raises(ConfigError, match="'evaluator' needs a placement that gives it a model of its own"):
        makers_of(recipe, "cpu").learner(MemoryStore("float32"), "cpu")
