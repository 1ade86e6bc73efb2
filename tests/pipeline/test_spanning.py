"""Versions of a rollout's tokens and of the caches under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from tether.pipeline.spanning import spanning_metrics

from .making import completion_of, group_of, rollout_of
from .small import step_of


def rollouts():
    plain = completion_of([4, 5, 6], version=[3, 3, 3])
    spans = completion_of([4, 5, 6, 7], version=[3, 3, 5, 6])
    kept = replace(spans, cached_version=np.array([3, 3, 3, 4], np.int32))
    own = replace(plain, cached_version=np.array([3, 3, 3], np.int32))
    made = (plain, spans, kept, own, completion_of([]))
    return [rollout_of(f"g0/{n}", [3], completion, float(n % 2)) for n, completion in enumerate(made)]


def test_rollouts_that_span_versions_and_caches_that_are_older_are_counted():
    metrics = spanning_metrics(rollouts())
    assert metrics["rollout/spanning_fraction"].value == 2 / 4
    assert metrics["rollout/spanning_fraction"].count == 4.0
    assert metrics["staleness/cached_fraction"].value == 2 / 14
    assert metrics["staleness/cached_fraction"].count == 14.0
    assert metrics["staleness/cache_age_max"].value == 2.0
    assert spanning_metrics(rollouts()[-1:]) == {}


def test_a_packed_token_says_whether_its_cache_was_older():
    step = step_of([group_of(0, rollouts())], budget=1)
    marked = {m.rows[0].rollout.id: m.is_cached_older for m in step.micro_batches}
    assert marked["g0/0"] is None
    assert marked["g0/2"].tolist() == [False, False, True, True]
    assert marked["g0/3"].tolist() == [False, False, False]
    (together,) = step_of([group_of(0, rollouts())]).micro_batches
    assert torch.equal(
        together.is_cached_older,
        torch.cat(
            [
                torch.from_numpy(np.isin(row.rollout.id, ["g0/2"]) & (np.arange(len(row.rollout.completion)) > 1))
                for row in together.rows
            ]
        ),
    )


def test_a_packed_token_carries_the_old_log_prob_that_its_rollout_brought():
    old = np.array([-0.5, np.nan, -0.25], np.float32)
    brought = [replace(r, logp_old=old) if r.id == "g0/0" else r for r in rollouts()]
    step = step_of([group_of(0, brought)], budget=1)
    laid = {m.rows[0].rollout.id: m.logp_old for m in step.micro_batches}
    np.testing.assert_array_equal(laid["g0/0"].numpy(), old)
    assert all(bool(values.isnan().all()) for id, values in laid.items() if id != "g0/0")
    assert all(m.logp_old is None for m in step_of([group_of(0, rollouts())], budget=1).micro_batches)
