"""Advantages of groups, aggregation of losses, KL estimators, diagnostics: everything that is a sum or a mean."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tether.core.advantage import GRPO, RLOO, DrGRPO
from tether.core.aggregation import (
    Denominator,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)
from tether.core.kl import K1, K2, K3, LowVarKL
from tether.core.measures import observed
from tether.core.seen import spans
from tether.core.tokens import TokenBatch
from tether.records import Metrics
from tether.rules.ppo import PPO

from .tables import Given, assert_close, inputs, label, log, loss_and_gradient, recipe, rows, tokens_with

# --- advantages ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("group advantages"), ids=label)
def test_group_advantages(row):
    single = row["case"].partition("single, ")[2] or "drop"
    rewards = torch.tensor(row["rewards"], dtype=torch.float64)
    estimators = {
        "GRPO ddof=1": GRPO(ddof=1, single=single),
        "GRPO ddof=0": GRPO(ddof=0, single=single),
        "Dr.GRPO": DrGRPO(single=single),
        "RLOO": RLOO(),
    }
    for column, estimator in estimators.items():
        got = estimator(rewards)
        if row[column] is None:
            assert got is None
        else:
            torch.testing.assert_close(got, torch.tensor(row[column], dtype=torch.float64), rtol=1e-6, atol=1e-9)
    if len(rewards) > 1:
        assert_close(rewards.mean(), row["mean"])
        assert_close(rewards.std(correction=1), row["std ddof=1"])
        assert_close(rewards.std(correction=0), row["std ddof=0"])


# --- aggregation: on-policy with A = -x, the loss of a token under PPO is x -------------------------------------------


def losses_as_tokens(losses: list[list[float]]):
    flat = [-x for row in losses for x in row]
    ids = [b for b, row in enumerate(losses) for _ in row]
    return tokens_with(behavior=[0.0] * len(flat), advantage=flat, sequence=ids)


def aggregated(losses, aggregation, *, corrections=(), denominator=None) -> float:
    tokens = losses_as_tokens(losses)
    algorithm = recipe(PPO(), aggregation=aggregation, corrections=corrections)
    return float(loss_and_gradient(tokens, torch.zeros(len(tokens)), algorithm, denominator)[0].loss.detach())


def test_aggregations():
    name = "loss aggregation, losses [1,2,3],[10], horizon 8"
    (row,) = rows(name)
    given = inputs(name)
    ways = {
        "token-mean": TokenMean(),
        "token-sum": TokenSum(),
        "seq-mean-token-sum": SeqMeanTokenSum(),
        "seq-mean-token-sum-norm(/8)": SeqMeanTokenSumNorm(horizon=given["horizon"]),
        "seq-mean-token-mean": SeqMeanTokenMean(),
    }
    assert set(ways) == set(row)
    for column, aggregation in ways.items():
        assert_close(aggregated(given["losses"], aggregation), row[column])


def test_a_mask_leaves_the_denominator_alone():
    name = "same with token (0,2) removed by a filter mask"
    (row,) = rows(name)
    given = inputs(name)
    mask = Given(tuple(float(x) for part in given["filter"] for x in part), is_mask=True)
    losses, survivors = given["losses"], Denominator(num_tokens=3, num_sequences=2)
    assert_close(aggregated(losses, TokenMean(), corrections=(mask,)), row["token-mean, denominator = response mask"])
    assert_close(aggregated(losses, SeqMeanTokenMean(), corrections=(mask,)), row["seq-mean-token-mean, resp. mask"])
    # what a caller who counted survivors would get: a higher learning rate the more it masks
    shrunk = aggregated(losses, TokenMean(), corrections=(mask,), denominator=survivors)
    assert_close(shrunk, row["token-mean, denominator = kept tokens"])


def test_micro_batches_share_the_steps_denominator():
    (row,) = rows("micro-batch split [1,2,3] and [10]")
    losses = inputs("micro-batch split [1,2,3] and [10]")["losses"]
    step = Denominator(num_tokens=4, num_sequences=2)
    shares = [aggregated([part], TokenMean(), denominator=step) for part in losses]
    assert_close(sum(shares), row["sum/global tokens (right)"])
    own = [aggregated([part], TokenMean()) for part in losses]
    assert_close(sum(own) / len(own), row["mean of micro token-means (wrong)"])


# --- KL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("KL estimators of KL(pi,ref), sample ~ pi"), ids=lambda r: f"{r['pi']}/{r['ref']}")
def test_kl_estimators_and_their_gradients(row):
    delta = torch.tensor([math.log(row["pi"]) - math.log(row["ref"])], requires_grad=True)
    columns = {"k1": K1(), "k2": K2(), "k3": K3(), "low_var_kl (clamped 10)": LowVarKL()}
    for column, estimator in columns.items():
        value = estimator(delta)
        assert_close(value, [row[column]])
        if f"d{column}/dlogp" in row:
            (slope,) = torch.autograd.grad(value.sum(), delta)
            assert_close(slope, [row[f"d{column}/dlogp"]])
    assert_close(delta.abs(), [row["abs"]])


@pytest.mark.parametrize("row", rows("exact expectations"), ids=lambda row: str(row["pi"]))
def test_expectations_over_the_whole_distribution(row):
    pi, ref = (torch.tensor(row[name], dtype=torch.float64) for name in ("pi", "ref"))
    delta = pi.log() - ref.log()
    assert_close((pi * delta).sum(), row["KL(pi,ref)"])
    for column, estimator in {"E k1": K1(), "E k2": K2(), "E k3": K3()}.items():
        assert_close((pi * estimator(delta)).sum(), row[column])
    assert_close(tv_of_samples(row["pi"], row["ref"], sampled="ref"), row["TV"])
    assert_close(tv_of_samples(row["pi"], row["ref"], sampled="ref"), row[".5 E_ref abs(r-1)"])
    assert_close(tv_of_samples(row["pi"], row["ref"], sampled="pi"), row[".5 E_pi abs(r-1) (wrong measure)"])


def tv_of_samples(pi: list[float], ref: list[float], *, sampled: str) -> float:
    """``mismatch/tv`` over ten tokens that hold every outcome as often as its probability says."""
    source = {"pi": pi, "ref": ref}[sampled]
    outcomes = [i for i, p in enumerate(source) for _ in range(round(10 * p))]
    tokens = tokens_with(behavior=log([ref[i] for i in outcomes]), advantage=[0.0] * len(outcomes))
    logp = torch.tensor(log([pi[i] for i in outcomes]))
    return measured(tokens, logp)["mismatch/tv"].value


def measured(tokens: TokenBatch, logp: torch.Tensor) -> Metrics:
    """What is observed of a step of one micro-batch under PPO."""
    terms, _ = loss_and_gradient(tokens, logp, recipe(PPO()))
    return observed([(logp, tokens)], [terms], spans([tokens]))


# --- diagnostics -----------------------------------------------------------------------------------------------------

DIAGNOSTICS = "mismatch diagnostics, d=[0.0, 0.01, -0.02, 0.05, -0.1, 0.3], mu=[0.9, 0.5, 0.5, 0.2, 0.8, 0.01]"


def test_mismatch_diagnostics():
    given = inputs(DIAGNOSTICS)
    (row,) = rows(DIAGNOSTICS)
    mu = torch.tensor(log(given["mu"]))
    tokens = tokens_with(behavior=mu.tolist(), advantage=[0.0] * len(mu))
    got = measured(tokens, mu + torch.tensor(given["d"]))
    names = {
        "abs_mean": "dbar",
        "mean": "mean d",
        "variance": "Var (ddof 0)",
        "k1": "k1 KL(mu,pi)",
        "k2": "k2",
        "k3": "k3 KL(mu,pi)",
        "tv": "mean abs(r-1)/2",
        "tv_sampled": "mean sampled TV mu abs(r-1)",
        "is_deviation_fraction": "frac abs(r-1)>.2",
        "ess": "ESS/N",
        "chi2": "chi2 (mean (r-1)^2)",
        "max": "max abs(d)",
    }
    for name, column in names.items():
        assert got[f"mismatch/{name}"].value == pytest.approx(row[column], rel=2e-5, abs=1e-6), name
    assert set(names.values()) == set(row)


def test_mismatch_is_a_token_mean_and_slimes_log_a_mean_of_responses():
    (row,) = rows("d-bar averaging")
    d = [x for n, x in zip(row["lengths"], row["abs(d) of every token"], strict=True) for _ in range(n)]
    ids = [b for b, n in enumerate(row["lengths"]) for _ in range(n)]
    tokens = tokens_with(behavior=[0.0] * len(d), advantage=[0.0] * len(d), sequence=ids)
    got = measured(tokens, torch.tensor(d))
    assert_close(got["mismatch/abs_mean"].value, row["token mean"])
    assert_close(got["mismatch/response_abs_mean"].value, row["per-sample mean then mean (slime log)"])
    assert got["mismatch/response_abs_mean"].count == len(row["lengths"])


@pytest.mark.parametrize("row", rows("VCPO ESS"), ids=lambda row: str(row["w"]))
def test_effective_sample_size(row):
    """A weight of 0 is beyond the guard: e^-20 stands for it."""
    d = [math.log(w) if w else -30.0 for w in row["w"]]
    tokens = tokens_with(behavior=[0.0] * len(d), advantage=[0.0] * len(d))
    metrics = measured(tokens, torch.tensor(d))
    for level in ("ess", "response_ess"):
        got = metrics[f"mismatch/{level}"].value
        assert_close(got, row["rho_ess"])
        assert_close(got * len(d), row["ESS"])


@pytest.mark.parametrize("row", rows("version bookkeeping"), ids=label)
def test_staleness_counts_updates_since_the_tokens_version(row):
    stale = row["target"] - torch.tensor(row["token versions"])
    assert stale.tolist() == row["staleness N"]
    n = len(stale)
    tokens = tokens_with(behavior=[0.0] * n, advantage=[0.0] * n, sequence=[0] * n)
    got = measured(dataclasses.replace(tokens, staleness=stale), torch.zeros(n))
    for name in ("mean staleness", "delta_intra", "delta_inter"):
        metric = "staleness/mean" if name == "mean staleness" else f"staleness/{name}"
        assert_close(got[metric].value, row[name])
    assert got["staleness/max"].value == max(row["staleness N"])
    histogram = {str(n): float(row["staleness N"].count(n)) for n in set(row["staleness N"])}
    assert got["staleness/histogram"].value == histogram
