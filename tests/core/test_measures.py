"""Diagnostics against plain numpy, over any split into micro-batches."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch

from tests.golden.tables import recipe
from tether.core.aggregation import Denominator
from tether.core.loss import LossTerms, measure_scope, policy_loss
from tether.core.measures import observed
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.seen import Labels, spans
from tether.core.tokens import TokenBatch
from tether.corrections.tis import TIS
from tether.records import Metrics
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .heavy import log_ratios, tokens_at


def cut(tokens: TokenBatch, d: torch.Tensor, *sizes: int) -> list[tuple[torch.Tensor, TokenBatch]]:
    """The batch as micro-batches of these sizes."""
    place = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return [(d.detach()[place == i], tokens.select(place == i)) for i in range(len(sizes))]


def losses(parts, algorithm) -> list[LossTerms]:
    """What the loss makes of every micro-batch, measured over all."""
    stats = measure_scope(algorithm, parts)
    n = max(1, sum(int(t.trainable.sum()) for _, t in parts))
    return [policy_loss(PolicyTokens(logp), t, algorithm, stats, Denominator(n, n)) for logp, t in parts]


def measured(parts, algorithm=None) -> Metrics:
    """Everything observed of a step."""
    return observed(parts, losses(parts, algorithm or recipe(PPO())), spans([t for _, t in parts]))


@pytest.fixture
def batch():
    """600 heavy-tailed tokens, some beyond the guard, a third untrainable with NaN in their place."""
    d = torch.cat([log_ratios("student", 596, scale=0.03, seed=1), torch.tensor([25.0, -30.0, 20.0, 0.0])])
    tokens, _ = tokens_at(d, seed=2)
    trainable = torch.rand(600, generator=torch.Generator().manual_seed(3)) > 0.33
    trainable[-4:] = True
    tokens = dataclasses.replace(tokens, trainable=trainable, staleness=torch.arange(600) % 5)
    return tokens, torch.where(trainable, d, torch.nan)


SPLITS = pytest.mark.parametrize("sizes", [(600,), (1, 0, 599), (200, 200, 200)])


@SPLITS
def test_mismatch_is_what_numpy_says_for_every_split(batch, sizes):
    tokens, d = batch
    behavior = -3.0 - torch.arange(600.0) / 100
    tokens = dataclasses.replace(tokens, logp_behavior=behavior)
    logp = (behavior + d).float()
    raw = (logp - behavior)[tokens.trainable].double().numpy()
    mu, pi = (x[tokens.trainable].double().numpy() for x in (behavior, logp))
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
        "tv_sampled": (np.exp(mu) * np.abs(r - 1)).mean(),
        "chi2": ((r - 1) ** 2).mean(),
        "is_deviation_fraction": (np.abs(r - 1) > 0.2).mean(),
        "ess": r.sum() ** 2 / (len(r) * (r**2).sum()),
        "guard_fraction": (np.abs(raw) > 20).mean(),
        "low_prob_current": (np.exp(pi) < 1e-3).mean(),
        "low_prob_behavior": (np.exp(mu) < 1e-3).mean(),
        "ppl_current": np.exp(-pi.mean()),
        "ppl_behavior": np.exp(-mu.mean()),
        "ppl_ratio": np.exp((mu - pi).mean()),
        "p99": np.quantile(np.abs(x), 0.99, method="inverted_cdf"),
        "max": np.abs(x).max(),
    }
    got = measured(cut(tokens, logp, *sizes))
    assert 0 < got["mismatch/low_prob_behavior"].value < 1
    names = {name for name in got if name.startswith("mismatch/") and "response" not in name and "_by_" not in name}
    assert names == {f"mismatch/{name}" for name in wanted}
    for name, value in wanted.items():
        assert got[f"mismatch/{name}"].value == pytest.approx(value, rel=1e-6), name
        assert got[f"mismatch/{name}"].count == len(x)
        assert got[f"mismatch/{name}"].merge == ("max" if name == "max" else "mean")
    assert got["mismatch/guard_fraction"].value == pytest.approx(2 / len(x))


def responses_of(tokens: TokenBatch, d: torch.Tensor):
    """Trainable d and staleness of every response that has some."""
    for b in tokens.sequence.unique():
        kept = (tokens.sequence == b) & tokens.trainable
        if kept.any():
            yield d[kept].double().numpy(), tokens.staleness[kept].numpy()


def in_responses(tokens: TokenBatch) -> TokenBatch:
    """The same tokens as responses of 1, 2, 3, ... tokens."""
    ids = torch.repeat_interleave(torch.arange(40), torch.arange(40))[: len(tokens)]
    return dataclasses.replace(tokens, sequence=ids)


@pytest.mark.parametrize("places", [(40,), (1, 1, 38), (20, 20)])
def test_every_response_counts_once(batch, places):
    tokens, d = batch
    tokens, d = in_responses(tokens), torch.where(batch[0].trainable, 0.1 * d, d)
    ends = torch.tensor(places).cumsum(0).tolist()
    sides = [(tokens.sequence >= low) & (tokens.sequence < high) for low, high in zip([0, *ends], ends, strict=False)]
    got = measured([(d[side], tokens.select(side)) for side in sides])
    each = list(responses_of(tokens, d))
    w = np.exp([x.sum().clip(-20, 20) for x, _ in each])
    wanted = {
        "mismatch/response_abs_mean": np.mean([np.abs(x).mean() for x, _ in each]),
        "mismatch/response_ess": w.sum() ** 2 / (len(w) * (w**2).sum()),
        "mismatch/response_chi2": ((w - 1) ** 2).mean(),
        "staleness/delta_intra": np.mean([s.max() - s.min() for _, s in each]),
        "staleness/delta_inter": np.mean([s.min() for _, s in each]),
    }
    for name, value in wanted.items():
        assert got[name].value == pytest.approx(value, rel=1e-6), name
        assert (got[name].count, got[name].merge) == (len(each), "mean")


def test_a_step_without_trainable_tokens_measures_nothing(batch):
    tokens, d = batch
    nobody = dataclasses.replace(tokens, trainable=torch.zeros(600, dtype=torch.bool))
    assert measured([(d, nobody)]) == {}


def test_spans_reach_over_trainable_tokens_of_all_micro_batches(batch):
    tokens, d = batch
    wild = torch.where(tokens.trainable, tokens.staleness + 3, 10**9)
    turn = torch.where(tokens.trainable, torch.arange(600) % 4, -7)
    parts = cut(dataclasses.replace(tokens, staleness=wild, turn=turn), d, 0, 100, 500)
    reach = spans([t for _, t in parts])
    assert reach == (Labels(3, 7), Labels(0, 3), 500)
    assert spans([t for _, t in parts[:1]]) == (None, None, 0)
    assert {name for name in measured(parts) if name.startswith("turn/")} == {"turn/histogram"}


def test_staleness_histogram_counts_trainable_tokens_of_all_micro_batches(batch):
    tokens, d = batch
    got = measured(cut(tokens, d, 100, 0, 500))
    kept = tokens.staleness[tokens.trainable].tolist()
    assert got["staleness/histogram"].value == {str(k): float(n) for k, n in sorted(Counter(kept).items())}
    assert got["staleness/histogram"].merge == "sum"
    assert got["staleness/mean"].value == pytest.approx(np.mean(kept))
    assert got["staleness/mean"].count == len(kept)
    assert (got["staleness/max"].value, got["staleness/max"].merge) == (4.0, "max")


def test_a_staleness_that_no_token_has_gets_no_label(batch):
    tokens, d = batch
    got = measured([(d, dataclasses.replace(tokens, staleness=8 + 7 * (torch.arange(600) % 2)))])
    assert list(got["staleness/histogram"].value) == ["8", "15"]
    assert list(got["mismatch/abs_sum_by_staleness"].value) == ["8", "15"]


@pytest.mark.parametrize("rule", [PPO(), SAT()], ids=["ppo", "sat"])
@SPLITS
def test_clipping_shares_are_of_trainable_tokens_for_every_split(batch, rule, sizes):
    tokens, d = batch
    algorithm = recipe(rule)
    n = int(tokens.trainable.sum())
    got = measured(cut(tokens, d, *sizes), algorithm)
    (whole,) = losses([(d, tokens)], algorithm)
    denied = (~whole.active & tokens.trainable).numpy()
    outward = (tokens.advantage * torch.nan_to_num(d) > 0).numpy() & tokens.trainable.numpy()
    assert got["clip/fraction"].value == pytest.approx(denied.sum() / n)
    assert got["clip/outward_fraction"].value == pytest.approx((denied & outward).sum() / n)
    assert got["clip/fraction"].count == n
    for name, mark in whole.marks.items():
        weight = mark.among.numpy()
        assert got[name].value == pytest.approx((mark.value.numpy() * weight).sum() / weight.sum(), rel=1e-5)
        assert got[name].count == weight.sum()


def test_fates_are_told_apart_by_sign_direction_staleness_and_turn(batch):
    tokens, d = batch
    turn = torch.arange(600) % 3
    tokens = dataclasses.replace(tokens, turn=turn)
    algorithm = recipe(PPO(), corrections=(Outliers(),))
    got = measured(cut(tokens, d, 250, 350), algorithm)
    (terms,) = losses([(d, tokens)], algorithm)
    x, credit = torch.nan_to_num(d), tokens.advantage
    clipped = (credit * (x.exp() - 1) > 0.2 * credit.abs()) & (credit != 0) & tokens.trainable
    assert clipped.equal(terms.clipped)
    masked = (x.abs() > 0.1) & ~clipped & tokens.trainable
    fates = {"clipped": clipped, "masked": masked, "kept": tokens.trainable & ~clipped & ~masked}
    n = int(tokens.trainable.sum())
    for fate, held in fates.items():
        assert held.any()
        for sign, chosen in (("positive", credit > 0), ("negative", credit < 0)):
            outward = credit * x > 0
            for direction, moved in (("outward", outward), ("pull_back", ~outward)):
                metric = got[f"fate/{fate}/{sign}/{direction}"]
                assert metric.value == pytest.approx(int((held & chosen & moved).sum()) / n)
                assert (metric.count, metric.merge) == (n, "mean")
        assert got[f"fate/{fate}/zero"].value == pytest.approx(int((held & (credit == 0)).sum()) / n)
        for kind, label in (("staleness", tokens.staleness), ("turn", turn)):
            metric = got[f"fate/{fate}/by_{kind}"]
            assert metric.value == {str(k): float((held & (label == k)).sum()) for k in range(int(label.max()) + 1)}
            assert metric.merge == "sum"
    near = d.clamp(-20, 20).double()
    for kind, label in (("staleness", tokens.staleness), ("turn", turn)):
        for name, value in got[f"mismatch/abs_sum_by_{kind}"].value.items():
            assert value == pytest.approx(near[(label == int(name)) & tokens.trainable].abs().sum().item())
    assert got["turn/histogram"].value == {str(k): float(((turn == k) & tokens.trainable).sum()) for k in range(3)}
    k3 = near.expm1() - near
    for name, value in got["mismatch/k3_sum_by_turn"].value.items():
        assert value == pytest.approx(k3[(turn == int(name)) & tokens.trainable].sum().item())
    low = (d < math.log(1e-3)) & tokens.trainable
    assert got["mismatch/low_prob_sum_by_turn"].value == {str(k): float((low & (turn == k)).sum()) for k in range(3)}
    assert low.sum() == 1
    outliers = ((x.abs() > 0.1) & tokens.trainable).sum().item()
    assert got["correction/Outliers/zero_fraction"].value == pytest.approx(outliers / n)
    assert got["correction/Outliers/mean_weight"].value == pytest.approx(1 - outliers / n)


@dataclasses.dataclass(frozen=True)
class Outliers:
    """A mask over tokens that have moved far."""

    traits: ClassVar[Traits] = Traits(reads="total", is_mask=True, keeps_pull_back=False)

    def __call__(self, log_ratio, policy, tokens, stats):
        return Weight((log_ratio.abs() <= 0.1).float())


@SPLITS
def test_the_mean_weight_of_a_correction_is_over_trainable_tokens(batch, sizes):
    tokens, d = batch
    anchored = dataclasses.replace(tokens, logp_proximal=torch.nan_to_num(d))
    got = measured(cut(anchored, d, *sizes), recipe(PPO(), corrections=(TIS(cap=1.2),)))
    weight = d[tokens.trainable].double().exp().clamp(max=1.2)
    assert got["correction/tis/mean_weight"].value == pytest.approx(weight.mean().item(), rel=1e-6)
    assert got["correction/tis/mean_weight"].count == len(weight)
    assert got["correction/tis/zero_fraction"].value == 0.0


def test_sats_marks_are_shares_of_its_scope(batch):
    tokens, d = batch
    n = int(tokens.trainable.sum())
    got = measured([(d, tokens)], recipe(SAT()))
    assert got["sat/gate_fraction"].value == pytest.approx((n // 10) / n)
    assert 0 < got["sat/newly_cut_fraction"].value <= got["sat/gate_fraction"].value
    assert 0 < got["sat/mean_contraction"].value < 0.5
    assert got["sat/mean_contraction"].count == n // 10


def test_a_mark_that_no_token_carries_is_left_out():
    tokens, d = tokens_at(torch.zeros(20), seed=0)
    got = measured([(d, tokens)], recipe(SAT()))
    assert "sat/mean_contraction" not in got
    assert got["sat/gate_fraction"].value == 0.0


def test_perplexities_stay_finite_whatever_the_log_probabilities():
    tokens, d = tokens_at(torch.full((4,), -1e5), seed=0)
    got = measured([(d, dataclasses.replace(tokens, logp_behavior=torch.full((4,), -2e5)))])
    assert all(math.isfinite(got[f"mismatch/ppl_{name}"].value) for name in ("current", "behavior", "ratio"))


def test_where_a_stretch_ends_does_not_matter(batch, monkeypatch):
    tokens, d = batch
    tokens = dataclasses.replace(in_responses(tokens), turn=torch.arange(600) % 3)
    algorithm = recipe(SAT(), corrections=(Outliers(),))
    whole = measured([(d, tokens)], algorithm)
    monkeypatch.setattr("tether.core.stretches.CPU_STRETCH", 7)
    short = measured([(d, tokens)], algorithm)
    assert short.keys() == whole.keys()
    for name, metric in whole.items():
        assert short[name].value == pytest.approx(metric.value, rel=1e-9, abs=1e-12), name


def test_the_effective_sample_is_zero_where_float32_cannot_tell_any_ratio_from_zero():
    tokens, d = tokens_at(torch.full((4,), -20.0), seed=0)
    got = measured([(d, tokens)])
    assert got["mismatch/ess"].value == 0.0
    assert got["mismatch/response_ess"].value == pytest.approx(1.0)
