"""Old log-probs scored before each update: every token in time, whatever becomes of its rollout."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from tether.errors import OldVersionError
from tether.pipeline.acquisition import Acquisition
from tether.pipeline.capture import LEARNER_FILE
from tether.pipeline.snapshots import WeightCopies
from tether.records import Completion, Group, Rollout

from .past import BUDGET, assert_old, laid_by_rollout, learner_of, scorer_of, weights_of
from .small import Bench, loaded_of, step_of


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


def acquisition(policy, rescoring):
    return Acquisition(rescoring, scorer_of(policy), WeightCopies(policy.model, most=1))


def stamped(rollout: Rollout, length: int, versions) -> Rollout:
    """Its first tokens, from these versions, one after the other for two tokens each."""
    c = rollout.completion
    version = np.repeat(np.array(versions, np.int32), 2)[:length]
    version = np.concatenate([version, np.full(max(0, length - len(version)), versions[-1], np.int32)])
    part = Completion(
        token_ids=c.token_ids[:length],
        logp=c.logp[:length],
        entropy=c.entropy[:length],
        version=version[: len(c.token_ids[:length])],
        finish="interrupted",
    )
    return replace(rollout, completion=part)


def under_way(groups, updates: int) -> list[Rollout]:
    """Every rollout as far as it is after so many updates: two tokens of each version."""
    versions = list(range(updates + 1))
    return [stamped(r, min(len(r.completion), 2 * len(versions)), versions) for g in groups for r in g.rollouts]


def ids(groups) -> set[str]:
    return {r.id for g in groups for r in g.rollouts}


def finished(groups, updates: int) -> list[Group]:
    whole = [
        replace(g, rollouts=tuple(stamped(r, len(r.completion), range(updates + 1)) for r in g.rollouts))
        for g in groups
    ]
    return whole


def lived(bench: Bench, updates: int = 3):
    """A learner after some updates before each of which what was under way was scored, and its past."""
    learner = learner_of(bench, acquisition)
    past = {}
    for n in range(updates):
        asyncio.run(learner.publish())
        past[n] = weights_of(learner)
        asyncio.run(learner.acquire(under_way(bench.groups, n), ids(bench.groups)))
        asyncio.run(learner.step(step_of(other(bench.groups, n), BUDGET)))
    asyncio.run(learner.publish())
    past[updates] = weights_of(learner)
    return learner, past


def other(groups, version: int) -> list[Group]:
    """Groups of other names, all fresh, to train on meanwhile."""
    fresh = []
    for g in groups:
        rollouts = [replace(stamped(r, len(r.completion), [version]), id=f"x{version}{r.id}") for r in g.rollouts]
        fresh.append(replace(g, rollouts=tuple(rollouts)))
    return fresh


def test_every_token_is_evaluated_at_its_own_version(dense):
    learner, past = lived(dense)
    step = step_of(finished(dense.groups, 3), BUDGET)
    assert_old(dense, past, learner.old.laid(step, 3), 3)


def test_a_token_is_scored_once(dense):
    learner, _ = lived(dense)
    cost = learner.old._rescoring.cost
    cost.forwards = 0
    asyncio.run(learner.acquire(under_way(dense.groups, 2), ids(dense.groups)))
    assert cost.forwards == 0
    asyncio.run(learner.acquire(under_way(dense.groups, 3), ids(dense.groups)))
    assert cost.forwards > 0


def test_what_was_sampled_while_an_update_was_made_is_scored_after_it(dense):
    learner = learner_of(dense, acquisition)
    past = {0: weights_of(learner)}
    asyncio.run(learner.acquire([], set()))
    asyncio.run(learner.step(step_of(other(dense.groups, 0), BUDGET)))
    past[1] = weights_of(learner)
    late = finished(dense.groups, 1)  # the first two tokens of each are of version 0, and nobody handed them in
    step = step_of(late, BUDGET)
    assert_old(dense, past, learner.old.laid(step, 1), 1)


def test_a_token_that_was_handed_in_too_late_is_an_error(dense):
    learner = learner_of(dense, acquisition)
    for n in range(2):
        asyncio.run(learner.step(step_of(other(dense.groups, n), BUDGET)))
    with pytest.raises(OldVersionError, match=r"has version 0, and held are 1, 2: each version is scored before"):
        learner.old.laid(step_of(finished(dense.groups, 2), BUDGET), 2)


def test_a_start_anew_has_no_scores_of_the_one_before(dense):
    learner, past = lived(dense)
    again = [
        replace(g, rollouts=tuple(stamped(r, len(r.completion), [2, 3]) for r in g.rollouts)) for g in dense.groups
    ]
    step = learner.old.laid(step_of(again, BUDGET), 3)  # version 2 is still at hand, as the weights before the last
    assert_old(dense, past, step, 3)


def test_rollouts_that_are_needed_no_longer_are_forgotten(dense):
    learner, _ = lived(dense)
    kept = {"g0/0", "g1/2"}
    asyncio.run(learner.acquire([], kept))
    assert set(learner.old._known) == kept


def test_fresh_tokens_are_left_to_the_first_forward_of_the_update(dense):
    learner, _ = lived(dense)
    laid = learner.old.laid(step_of(other(dense.groups, 3), BUDGET), 3)
    assert all(bool(values.isnan().all()) for values in laid_by_rollout(laid).values())


def test_a_step_without_an_update_does_not_lose_the_weights_before_the_last(dense):
    learner, _ = lived(dense)
    nothing = [replace(g, rollouts=g.rollouts[:1]) for g in dense.groups]
    report = asyncio.run(learner.step(step_of(nothing, BUDGET)))
    assert not report.updated
    assert learner.old._copies.versions == (2,)


def test_a_run_that_goes_on_has_the_same_scores_to_the_last_bit(dense, tmp_path):
    learner, _ = lived(dense)
    torch.save(learner.captured().state, tmp_path / LEARNER_FILE)
    step = step_of(finished(dense.groups, 3), BUDGET)
    wanted = asyncio.run(learner.step(step)).metrics
    again = learner_of(dense, acquisition)
    asyncio.run(again.restore(tmp_path))
    got = asyncio.run(again.step(step)).metrics
    assert {n: m for n, m in got.items() if not n.startswith("time/")} == {
        n: m for n, m in wanted.items() if not n.startswith("time/")
    }
    assert torch.isfinite(torch.tensor(got["mismatch/policy_abs_mean"].value))
