"""Diagnostics against plain numpy, over any split into micro-batches."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from tests.golden.tables import recipe
from tether.core import measures
from tether.core.aggregation import Denominator
from tether.core.loss import measure_scope, policy_loss
from tether.core.rule import PolicyTokens
from tether.core.tokens import TokenBatch
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .heavy import log_ratios, tokens_at


def cut(tokens: TokenBatch, d: torch.Tensor, *sizes: int) -> list[tuple[torch.Tensor, TokenBatch]]:
    """The batch as micro-batches of these sizes."""
    place = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return [(d.detach()[place == i], tokens.select(place == i)) for i in range(len(sizes))]


@pytest.fixture
def batch():
    """600 heavy-tailed tokens, some beyond the guard, a third untrainable with NaN in their place."""
    d = torch.cat([log_ratios("student", 596, scale=0.03, seed=1), torch.tensor([25.0, -30.0, 20.0, 0.0])])
    tokens, _ = tokens_at(d, seed=2)
    trainable = torch.rand(600, generator=torch.Generator().manual_seed(3)) > 0.33
    trainable[-4:] = True
    tokens = dataclasses.replace(tokens, trainable=trainable, staleness=torch.arange(600) % 5)
    return tokens, torch.where(trainable, d, torch.nan)


@pytest.mark.parametrize("sizes", [(600,), (1, 0, 599), (200, 200, 200)])
def test_mismatch_is_what_numpy_says_for_every_split(batch, sizes):
    tokens, d = batch
    raw = d[tokens.trainable].double().numpy()
    x = raw.clip(-20, 20)
    r = np.exp(x)
    wanted = {
        "abs_mean": np.abs(x).mean(),
        "mean": x.mean(),
        "variance": x.var(),
        "k1": -x.mean(),
        "k2": (x**2).mean() / 2,
        "k3": (r - 1 - x).mean(),
        "tv": np.abs(r - 1).mean() / 2,
        "chi2": ((r - 1) ** 2).mean(),
        "is_deviation_fraction": (np.abs(r - 1) > 0.2).mean(),
        "ess": r.sum() ** 2 / (len(r) * (r**2).sum()),
        "guard_fraction": (np.abs(raw) > 20).mean(),
        "p99": np.quantile(np.abs(x), 0.99, method="inverted_cdf"),
        "max": np.abs(x).max(),
    }
    got = measures.mismatch(cut(tokens, d, *sizes))
    assert set(got) == {f"mismatch/{name}" for name in wanted}
    for name, value in wanted.items():
        assert got[f"mismatch/{name}"].value == pytest.approx(value, rel=1e-6), name
        assert got[f"mismatch/{name}"].count == len(x)
        assert got[f"mismatch/{name}"].merge == ("max" if name == "max" else "mean")
    assert got["mismatch/guard_fraction"].value == pytest.approx(2 / len(x))


def test_a_step_without_trainable_tokens_measures_nothing(batch):
    tokens, d = batch
    nobody = dataclasses.replace(tokens, trainable=torch.zeros(600, dtype=torch.bool))
    assert measures.mismatch([(d, nobody)]) == {}
    assert measures.staleness([nobody]) == {}


def test_staleness_histogram_counts_trainable_tokens_of_all_micro_batches(batch):
    tokens, d = batch
    got = measures.staleness([t for _, t in cut(tokens, d, 100, 0, 500)])
    kept = tokens.staleness[tokens.trainable].tolist()
    assert got["staleness/histogram"].value == {str(k): float(n) for k, n in sorted(Counter(kept).items())}
    assert got["staleness/histogram"].merge == "sum"
    assert got["staleness/mean"].value == pytest.approx(np.mean(kept))
    assert got["staleness/mean"].count == len(kept)
    assert (got["staleness/max"].value, got["staleness/max"].merge) == (4.0, "max")


@pytest.mark.parametrize("rule", [PPO(), SAT()], ids=["ppo", "sat"])
@pytest.mark.parametrize("sizes", [(600,), (1, 0, 599), (200, 200, 200)])
def test_clipping_shares_are_of_trainable_tokens_for_every_split(batch, rule, sizes):
    tokens, d = batch
    algorithm = recipe(rule)
    parts = cut(tokens, d, *sizes)
    stats = measure_scope(algorithm, parts)
    n = int(tokens.trainable.sum())
    denominator = Denominator(n, n)
    terms = [policy_loss(PolicyTokens(logp), t, algorithm, stats, denominator) for logp, t in parts]
    got = measures.clipping(terms, n)
    whole = policy_loss(PolicyTokens(d), tokens, algorithm, stats, denominator)
    denied = (~whole.active & tokens.trainable).numpy()
    outward = (tokens.advantage * torch.nan_to_num(d) > 0).numpy() & tokens.trainable.numpy()
    assert got["clip/fraction"].value == pytest.approx(denied.sum() / n)
    assert got["clip/outward_fraction"].value == pytest.approx((denied & outward).sum() / n)
    assert got["clip/fraction"].count == n
    for name, mark in whole.marks.items():
        weight = mark.among.numpy()
        assert got[name].value == pytest.approx((mark.value.numpy() * weight).sum() / weight.sum(), rel=1e-5)
        assert got[name].count == weight.sum()


def test_sats_marks_are_shares_of_its_scope(batch):
    tokens, d = batch
    algorithm = recipe(SAT())
    stats = measure_scope(algorithm, [(d, tokens)])
    n = int(tokens.trainable.sum())
    got = measures.clipping([policy_loss(PolicyTokens(d), tokens, algorithm, stats, Denominator(n, n))], n)
    assert got["sat/gate_fraction"].value == pytest.approx((n // 10) / n)
    assert 0 < got["sat/newly_cut_fraction"].value <= got["sat/gate_fraction"].value
    assert 0 < got["sat/mean_contraction"].value < 0.5
    assert got["sat/mean_contraction"].count == n // 10


def test_a_mark_that_no_token_carries_is_left_out():
    tokens, d = tokens_at(torch.zeros(20), seed=0)
    algorithm = recipe(SAT())
    stats = measure_scope(algorithm, [(d, tokens)])
    got = measures.clipping([policy_loss(PolicyTokens(d), tokens, algorithm, stats, Denominator(20, 20))], 20)
    assert "sat/mean_contraction" not in got
    assert got["sat/gate_fraction"].value == 0.0
