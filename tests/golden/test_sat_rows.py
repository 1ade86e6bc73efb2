"""SAT on worked tokens: the quantile, the gate, both radii, loss and gradient for both signs of the advantage."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tether.core.examples import tokens_of
from tether.core.kernels import Exponential, Gaussian, Hill, Reciprocal
from tether.core.rule import PolicyTokens
from tether.core.statistics import AbsoluteQuantile, Statistics, measure
from tether.core.surrogate import effective_radius
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .tables import assert_close, inputs, label, loss_and_gradient, one_by_one, recipe, rows, table, tokens_with

Q = AbsoluteQuantile(0.9)


def radii(case: str) -> dict[str, float]:
    low, high = inputs("SAT token")["eps"][case]
    return {"epsilon_low": low, "epsilon_high": high}


def quantile(d: list[float]) -> torch.Tensor:
    tokens, logp = tokens_of(log_ratio=d, advantage=[1.0] * len(d))
    return measure([(logp, tokens)], [Q])[Q]


@pytest.mark.parametrize("case", inputs("SAT token")["d"])
def test_quantile_and_number_of_gated_tokens(case):
    d = inputs("SAT token")["d"][case]
    tokens, logp = tokens_of(log_ratio=d, advantage=[1.0] * len(d))
    out = SAT(**radii(case))(logp, PolicyTokens(logp), tokens, Statistics({Q: quantile(d)}))
    for row in rows("SAT token"):
        if row["case"] == case:
            assert_close(quantile(d), row["q"])
            assert len(d) == row["N"]
            assert out.marks["sat/gate_fraction"].value.sum() == row["#gated"]


@pytest.mark.parametrize(
    "row", [row for row in rows("SAT token") if row["d"] is not None], ids=lambda row: f"{row['case']}, d={row['d']}"
)
@pytest.mark.parametrize("sign", [1, -1])
def test_gated_token(row, sign):
    d = inputs("SAT token")["d"][row["case"]]
    at, options, named = d.index(row["d"]), radii(row["case"]), f"(A={sign:+d})"
    tokens, logp = tokens_of(log_ratio=d, advantage=[float(sign)] * len(d))
    for column, rule in (("PPO", PPO(**options)), ("SAT", SAT(**options))):
        loss, gradient = one_by_one(tokens, logp, recipe(rule))
        assert_close(loss[at], row[f"L_{column}{named}"])
        assert_close(gradient[at], row[f"g{column}{named}"])
    assert_close(math.exp(row["d"]), row["r"])


@pytest.mark.parametrize(
    "row", [row for row in rows("SAT token") if row["d"] is not None], ids=lambda row: f"{row['case']}, d={row['d']}"
)
def test_contraction_and_both_ends_of_the_interval(row):
    """The ends show as the objective of a token beyond them: the same d with the sign that is held there."""
    options = radii(row["case"])
    d = row["d"]
    tokens, logp = tokens_of(log_ratio=[d], advantage=[1.0 if d > 0 else -1.0])
    out = SAT(**options)(logp, PolicyTokens(logp), tokens, Statistics({Q: torch.tensor(row["q"])}))
    moved, still, end = ("c+", "c-", "1+eps_high~") if d > 0 else ("c-", "c+", "1-eps_low~")
    assert_close(out.marks["sat/mean_contraction"].value, [row[moved]])
    assert row[still] == 1.0
    assert_close(out.objective.abs(), [row[end]])
    opposite = "1-eps_low~" if d > 0 else "1+eps_high~"
    assert_close(1 - options["epsilon_low"] if d > 0 else 1 + options["epsilon_high"], row[opposite])


def test_order_statistic_not_interpolation():
    d = inputs("SAT quantile flavour (S1)")["d"]
    right, wrong = rows("SAT quantile flavour (S1)")
    assert_close(quantile(d), right["q"])
    assert_close(Hill()(torch.tensor(0.18), quantile(d)), right["c+ for d=.18"])
    interpolated = torch.tensor(d).abs().quantile(0.9)
    assert_close(interpolated, wrong["q"])
    assert_close(Hill()(torch.tensor(0.18), interpolated), wrong["c+ for d=.18"])


@pytest.mark.parametrize("row", rows("SAT effective outward abs(d) threshold, eps=.2"), ids=label)
def test_effective_radius(row):
    low, high = effective_radius(row["q"], (0.2, 0.2), Hill())
    assert_close(math.log1p(high), row["upper (A>0), PPO=0.182322"])
    assert_close(-math.log1p(-low), row["lower (A<0), PPO=0.223144"])


KERNEL = {
    "hill2": Hill(2.0),
    "hill4": Hill(4.0),
    "exp(-ln2 u/q)": Exponential(),
    "gauss 2^-(u/q)^2": Gaussian(),
    "reciprocal q/(q+u)": Reciprocal(),
}


@pytest.mark.parametrize("row", rows("kernels (psi(0)=1, psi(q)=1/2)"), ids=label)
def test_kernel(row):
    u = torch.tensor([0.0, 0.5, 1.0, 1.2, 2.0, 3.0])
    assert_close(KERNEL[row["kernel"]](0.3 * u, torch.tensor(0.3)), list(row.values())[1:])


def test_gradient_differs_from_ppo_on_the_newly_cut_band_and_nowhere_else():
    check = inputs("SAT property check")
    draw = random.Random(0)
    differences = violations = total = 0
    for _ in range(check["batches"]):
        d = [draw.gauss(0, 0.08) for _ in range(check["N"])]
        a = [draw.choice([-1.5, -1, 0, 0.5, 2]) for _ in range(check["N"])]
        tokens = tokens_with(behavior=[0.0] * len(d), advantage=a)
        (_, ppo), (_, sat) = (loss_and_gradient(tokens, d, recipe(rule)) for rule in (PPO(), SAT()))
        x, q = torch.tensor(d), quantile(d)
        r, gated = x.exp(), x.abs() > q
        psi = Hill()(x.abs(), q)
        above = gated & (x > 0) & (tokens.advantage > 0) & (r > 1 + 0.2 * psi) & (r <= 1.2)
        below = gated & (x < 0) & (tokens.advantage < 0) & (r < 1 - 0.2 * psi) & (r >= 0.8)
        band = above | below
        differences += int((ppo != sat).sum())
        violations += int(((ppo != sat) != band).sum()) + int(sat[band].any())
        total += len(d)
    wanted = table("SAT property check")
    assert (total, differences, violations) == (
        wanted["tokens"],
        wanted["gradient_differences"],
        wanted["band_violations"],
    )
