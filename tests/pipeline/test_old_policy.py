"""Old log-probs by snapshots: every token at the weights that sampled it, or an error that says why not."""

from __future__ import annotations

import asyncio
import copy
import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tether.core.advantage import GRPO
from tether.errors import OldVersionError
from tether.models.sharing import sharing_of
from tether.pipeline.capture import LEARNER_FILE
from tether.pipeline.old_policy import Cost, Rescoring, most_versions, narrowed
from tether.pipeline.packing import pack
from tether.pipeline.snapshots import Snapshots, WeightCopies
from tether.records import Metric

from .past import BUDGET, assert_old, at_versions, laid_by_rollout, learner_of, step_at, weights_of
from .small import Bench, loaded_of, step_of


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


@pytest.fixture(scope="module")
def moe() -> Bench:
    return Bench(loaded_of("moe"))


def snapshots(allowed: int = 3, lag: int = 1, where="cpu"):
    def make(policy, rescoring):
        return Snapshots(rescoring, WeightCopies(policy.model, most_versions(allowed, lag), where), allowed + 1)

    return make


def with_past(bench: Bench, make=None, updates: int = 3):
    """A learner after some updates, each published, with the weights that it had."""
    learner = learner_of(bench, make or snapshots())
    past = {}
    for _ in range(updates):
        asyncio.run(learner.publish())
        past[learner.updates] = weights_of(learner)
        learner.trainer.step(step_of(bench.groups, BUDGET))
    asyncio.run(learner.publish())
    past[learner.updates] = weights_of(learner)
    return learner, past


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_every_token_is_evaluated_at_its_own_version(dense, where):
    learner, past = with_past(dense, snapshots(where=where))
    step = learner.old.laid(step_at(dense.groups, (1, 2, 3)), learner.updates)
    assert_old(dense, past, step, 3)


def test_completions_that_share_their_prompt_are_evaluated_so_too(dense):
    learner, past = with_past(dense)
    groups = at_versions(dense.groups, (0, 1, 2))
    sharing = sharing_of(dense.loaded.model)
    step = pack(groups, GRPO(), token_budget=BUDGET, pad_id=0, device="cpu", sharing=sharing)
    assert any(m.inputs.branch is not None for m in step.micro_batches)
    assert_old(dense, past, learner.old.laid(step, learner.updates), 3)


def test_the_models_own_weights_stay_as_they_are(moe):
    learner, past = with_past(moe)
    learner.old.laid(step_at(moe.groups, (0, 1)), learner.updates)
    assert all(torch.equal(w, past[3][n]) for n, w in weights_of(learner).items())


def test_a_response_of_two_versions_is_the_two_single_version_scorings_joined(dense):
    learner, _ = with_past(dense)
    two, one, other = (
        laid_by_rollout(learner.old.laid(step_of(at(dense.groups, versions), BUDGET), 3))
        for versions in ((1, 2), (1, 1), (2, 2))
    )
    apart = 0
    for id, values in two.items():
        half = len(values) // 2
        torch.testing.assert_close(values, torch.cat([one[id][:half], other[id][half:]]), atol=1e-6, rtol=0)
        apart += int((values - other[id]).abs().max() > 1e-3)
    assert apart > 5


def at(groups, versions):
    """The first half of every rollout from one version, the second from another."""
    return [
        replace(
            g,
            rollouts=tuple(
                replace(r, completion=replace(r.completion, version=halves(len(r.completion), versions)))
                for r in g.rollouts
            ),
        )
        for g in groups
    ]


def halves(length: int, versions) -> np.ndarray:
    return np.array([versions[0]] * (length // 2) + [versions[1]] * (length - length // 2), np.int32)


def test_at_staleness_0_the_old_policy_is_the_current_one_to_the_last_bit(dense):
    learner, _ = with_past(dense)
    seen = []
    learner.trainer._measuring.keep = lambda _, measured: seen.extend(measured)
    report = asyncio.run(learner.step(step_at(dense.groups, (1, 3))))
    fresh = 0
    for logp, tokens in seen:
        same = tokens.staleness == 0
        assert torch.equal(logp.detach()[same], tokens.logp_old[same])
        assert not torch.equal(logp.detach()[~same], tokens.logp_old[~same])
        fresh += int(same.sum())
    assert fresh > 20
    assert report.metrics["mismatch/policy_abs_sum_by_staleness"].value["0"] == 0.0
    assert report.metrics["mismatch/policy_abs_sum_by_staleness"].value["2"] > 0.0


def test_where_everything_is_fresh_no_extra_forward_is_made(dense):
    learner, _ = with_past(dense)
    metrics = asyncio.run(learner.step(step_at(dense.groups, (3,)))).metrics
    assert metrics["old/forwards"].value == 0.0
    assert metrics["mismatch/policy_max"].value == 0.0
    assert metrics["mismatch/engine_abs_mean"].value == metrics["mismatch/abs_mean"].value


def test_what_it_takes_is_told(dense):
    learner, _ = with_past(dense)
    step = step_at(dense.groups, (0, 2))
    touched = sum(len({0, 2} & set(m.version.tolist())) for m in step.micro_batches)
    metrics = asyncio.run(learner.step(step)).metrics
    assert metrics["old/forwards"] == Metric(float(touched), "sum")
    assert metrics["old/versions"] == Metric(4.0, "max")
    size = sum(p.numel() * p.element_size() for p in learner.trainer.policy.model.parameters())
    assert metrics["old/bytes"] == Metric(4.0 * size, "max")
    assert metrics["time/old_s"].value > 0
    assert metrics["rollout/spanning_fraction"].value > 0


def test_the_old_policy_stays_over_several_updates_of_a_batch(dense):
    learner, _ = with_past(dense)
    learner.updates_per_batch = 3
    seen = []
    learner.trainer._measuring.keep = lambda _, measured: seen.append(measured)
    asyncio.run(learner.step(step_at(dense.groups, (1, 3))))
    first, *later = [torch.cat([tokens.logp_old for _, tokens in measured]) for measured in seen]
    assert len(later) == 2
    assert not first.isnan().any()
    assert all(torch.equal(first, other) for other in later)


def test_a_version_that_is_not_held_is_an_error_that_names_it_and_what_is(dense):
    learner, _ = with_past(dense)
    learner.old.published(4, live=2)
    with pytest.raises(OldVersionError, match=r"rollout 'g\d/\d' has version 1, and held are 2, 3, 4: a version is"):
        learner.old.laid(step_at(dense.groups, (1, 3)), 4)


def test_versions_are_kept_while_a_token_of_them_may_come_and_no_longer(dense):
    policy = dense.trainer().policy
    copies = WeightCopies(policy.model, most_versions(allowed=15, lag=8))
    old = Snapshots(Rescoring(policy=policy, temperature=1.0, cost=Cost()), copies, 16)
    held = []
    for version in range(0, 80, 8):
        old.published(version, None)
        held.append(copies.versions)
    assert held[0] == (0,)
    assert held[-1] == (64, 72)  # a token of 56 would be 16 updates old
    old.published(80, live=80)
    assert copies.versions == (80,)


def test_more_versions_than_the_bound_allows_are_a_fault(dense):
    copies = WeightCopies(dense.trainer().policy.model, most_versions(allowed=1, lag=1))
    for version in range(3):
        copies.keep(version, oldest=0)
    copies.keep(2, oldest=0)  # the same once more
    with pytest.raises(OldVersionError, match=r"at most 3 versions .*; held are 0, 1, 2, and 3 comes"):
        copies.keep(3, oldest=0)


def test_a_frozen_parameter_is_not_copied(dense):
    model = copy.deepcopy(dense.loaded.model)
    whole = WeightCopies(model, most=1)
    whole.keep(0, 0)
    num_bytes, num_tensors = whole.num_bytes, len(whole.state()[0])
    next(model.parameters()).requires_grad_(False)
    part = WeightCopies(model, most=1)
    part.keep(0, 0)
    assert part.num_bytes < num_bytes
    assert len(part.state()[0]) == num_tensors - 1


def test_a_copy_is_in_the_dtype_that_trains(dense):
    model = copy.deepcopy(dense.loaded.model).to(torch.bfloat16)
    copies = WeightCopies(model, most=1)
    copies.keep(0, 0)
    assert {tensor.dtype for tensor in copies.state()[0].values()} == {torch.bfloat16}


def test_files_go_with_their_version_and_all_with_the_learner(dense):
    copies = WeightCopies(dense.trainer().policy.model, most=3, where="disk")
    for version in (0, 8, 16):
        copies.keep(version, oldest=8)
    folder = Path(copies._folder)
    assert sorted(file.name for file in folder.iterdir()) == ["16.pt", "8.pt"]
    del copies
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("where", ["cpu", "disk"])
def test_a_run_that_goes_on_has_the_same_past_to_the_last_bit(dense, where, tmp_path):
    learner, _ = with_past(dense, snapshots(where=where))
    torch.save(learner.captured().state, tmp_path / LEARNER_FILE)
    step = step_at(dense.groups, (1, 2, 3))
    wanted = asyncio.run(learner.step(step)).metrics
    again = learner_of(dense, snapshots(where=where))
    asyncio.run(again.restore(tmp_path))
    got = asyncio.run(again.step(step)).metrics
    assert {n: m for n, m in got.items() if not n.startswith("time/")} == {
        n: m for n, m in wanted.items() if not n.startswith("time/")
    }


def test_a_part_of_a_batch_is_its_rows_and_tokens_alone(dense):
    step = step_of(dense.groups)
    (m,) = step.micro_batches
    wanted = torch.zeros(len(m.version), dtype=torch.bool)
    wanted[[3, -1]] = True
    part = narrowed(m.inputs, wanted)
    assert len(part.input_ids) == 2
    policy = dense.trainer().policy
    whole = policy(m.inputs, temperature=1.0).logp.detach()
    torch.testing.assert_close(policy(part, temperature=1.0).logp.detach(), whole[wanted], atol=1e-6, rtol=0)


def test_an_empty_step_is_left_as_it_is(dense):
    learner, _ = with_past(dense)
    step = replace(step_of(dense.groups), micro_batches=())
    assert learner.old.laid(step, 3).micro_batches == ()
