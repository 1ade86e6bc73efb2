"""The two parts of the mismatch, against plain numpy and over any split."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from .heavy import tokens_at
from .test_measures import measured

LABELS = (0, 1, 3)


@pytest.fixture
def batch():
    """400 tokens, a third untrainable with NaN in their place, a fourth over an older cache."""
    numbers = torch.Generator().manual_seed(5)
    policy, engine = (0.1 * torch.randn(400, generator=numbers) for _ in range(2))
    trainable = torch.rand(400, generator=numbers) > 0.33
    stale = torch.tensor(LABELS)[torch.arange(400) % 3]
    policy = torch.where(stale == 0, 0.0, policy)
    policy[7], trainable[7], stale[7] = 30.0, True, 3  # beyond the guard
    tokens, _ = tokens_at(policy + engine, seed=2)
    behavior = tokens.logp_behavior
    old = behavior + engine
    tokens = dataclasses.replace(
        tokens,
        trainable=trainable,
        staleness=stale,
        logp_old=torch.where(trainable, old, torch.nan),
        is_cached_older=torch.arange(400) % 4 == 1,
    )
    return tokens, torch.where(trainable, old + policy, torch.nan)


@pytest.mark.parametrize("sizes", [(400,), (1, 0, 399), (150, 150, 100)])
def test_the_parts_are_what_numpy_says_for_every_split(batch, sizes):
    tokens, logp = batch
    place = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    got = measured([(logp[place == i], tokens.select(place == i)) for i in range(len(sizes))])
    kept = tokens.trainable
    old, mu, pi = (x[kept].numpy() for x in (tokens.logp_old, tokens.logp_behavior, logp))
    policy, engine = ((a - b).clip(-20, 20).astype(np.float64) for a, b in ((pi, old), (old, mu)))
    cached, stale = tokens.is_cached_older[kept].numpy(), tokens.staleness[kept].numpy()
    wanted = {
        "policy_mean": policy.mean(),
        "policy_abs_mean": np.abs(policy).mean(),
        "policy_max": np.abs(policy).max(),
        "engine_mean": engine.mean(),
        "engine_abs_mean": np.abs(engine[~cached]).mean(),
        "engine_max": np.abs(engine[~cached]).max(),
        "engine_cached_abs_mean": np.abs(engine[cached]).mean(),
    }
    for name, value in wanted.items():
        assert got[f"mismatch/{name}"].value == pytest.approx(value, rel=1e-6, abs=1e-9), name
    assert got["mismatch/engine_abs_mean"].count == (~cached).sum()
    assert got["mismatch/engine_cached_abs_mean"].count == cached.sum()
    for name, part in (("policy", policy), ("engine", engine)):
        sums = got[f"mismatch/{name}_abs_sum_by_staleness"].value
        assert list(sums) == [str(label) for label in LABELS]
        for label in LABELS:
            assert sums[str(label)] == pytest.approx(np.abs(part[stale == label]).sum(), rel=1e-6, abs=1e-9)


def test_they_add_up_to_the_mismatch(batch):
    tokens, logp = batch
    logp = torch.where(torch.arange(400) == 7, tokens.logp_behavior, logp)
    got = measured([(logp, tokens)])
    total = got["mismatch/policy_mean"].value + got["mismatch/engine_mean"].value
    assert total == pytest.approx(got["mismatch/mean"].value, abs=1e-7)


def test_without_an_older_cache_nothing_is_counted_apart(batch):
    tokens, logp = batch
    for older in (None, torch.zeros(400, dtype=torch.bool)):
        got = measured([(logp, dataclasses.replace(tokens, is_cached_older=older))])
        assert "mismatch/engine_cached_abs_mean" not in got
        assert got["mismatch/engine_abs_mean"].count == int(tokens.trainable.sum())


def test_without_old_log_probs_nothing_is_said_of_them(batch):
    tokens, logp = batch
    got = measured([(logp, dataclasses.replace(tokens, logp_old=None))])
    assert not [name for name in got if "policy_" in name or "engine_" in name]
