"""Token-level SAT has exactly the gradient of PPO with one pair of radii a scope (methods.md 6.2, fact 5)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator, SeqMeanTokenMean
from tether.core.algorithm import Algorithm
from tether.core.examples import tokens_of
from tether.core.kernels import Hill
from tether.core.loss import measure_scope, policy_loss
from tether.core.ratio import Ratio, edge_log_ratio
from tether.core.rule import PolicyTokens
from tether.core.statistics import AbsoluteQuantile, Statistics
from tether.core.surrogate import effective_radius
from tether.proximal.rollout import RolloutProximal
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .heavy import SHAPES, applied, log_ratios, measured, tokens_at

SAT_GSPO = Algorithm(
    proximal=RolloutProximal(), level="sequence", rule=SAT(), aggregation=SeqMeanTokenMean(), advantage=GRPO()
)
SIZE = 4000
SLACK = 1e-6
"""Tokens this close to the radius, in nats, are left out: float32 may put them on either side of it."""


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28), (0.05, 0.9), (1.0, 0.01), (3e-3, 4e-3)])
def test_gradient_is_ppos_with_the_effective_radii(shape, low, high):
    total = excluded = cut = 0
    for exponent in (0.5, 2.0, 4.0, 8.0):
        for scale in (6e-4, 0.03, 0.12, 1.0):
            d = log_ratios(shape, SIZE, scale=scale, seed=int(1e4 * scale))
            tokens, d = tokens_at(d, seed=7)
            sat = SAT(epsilon_low=low, epsilon_high=high, kernel=Hill(exponent))
            q = float(measured(sat, tokens, d)[AbsoluteQuantile(0.9)])
            down, up = effective_radius(q, (low, high), Hill(exponent))
            assert 0 < down <= low
            assert 0 < up <= high
            out, gradient = applied(sat, tokens, d)
            _, wanted = applied(PPO(epsilon_low=down, epsilon_high=up), tokens, d)
            ends = torch.tensor([math.log1p(up), math.log1p(-down) if down < 1 else -math.inf])
            clear = ((d.detach()[:, None] - ends).abs() > SLACK).all(1)
            assert gradient[clear].equal(wanted[clear])
            total, excluded = total + len(d), excluded + int((~clear).sum())
            cut += int(out.marks["sat/newly_cut_fraction"].value.sum())
    assert excluded / total < 1e-3, f"{excluded} of {total} tokens were left out"
    assert cut > 0


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_radii_hold_for_one_ratio_a_response_of_any_length(shape):
    cut = 0
    for scale in (0.02, 0.06, 0.15):
        d = log_ratios(shape, 600, scale=scale, seed=int(1e4 * scale))
        lengths = torch.randint(1, 12, (600,), generator=torch.Generator().manual_seed(3))
        sequence = torch.repeat_interleave(torch.arange(600), lengths)
        noise = 0.02 * torch.randn(len(sequence), generator=torch.Generator().manual_seed(4))
        credit = torch.randn(600, generator=torch.Generator().manual_seed(5))[sequence]
        tokens, logp = tokens_of(
            log_ratio=(d.detach()[sequence] + noise).tolist(), advantage=credit.tolist(), sequence=sequence.tolist()
        )
        sat = replace(SAT_GSPO, rule=SAT())
        stats = measure_scope(sat, [(logp, tokens)])
        q = float(stats[Ratio("clipped", "sequence")][AbsoluteQuantile(0.9)])
        down, up = effective_radius(q, (0.2, 0.2), Hill())
        ppo = replace(SAT_GSPO, rule=PPO(epsilon_low=down, epsilon_high=up))
        counts = Denominator(num_tokens=len(sequence), num_sequences=600)
        gradients = []
        for algorithm in (sat, ppo):
            terms = policy_loss(PolicyTokens(logp), tokens, algorithm, stats, counts)
            gradients.append(torch.autograd.grad(terms.loss, logp)[0])
        s = edge_log_ratio("clipped", logp.detach(), tokens, "sequence")
        clear = ((s[:, None] - torch.tensor([math.log1p(up), math.log1p(-down)])).abs() > SLACK).all(1)
        assert clear.float().mean() > 0.99
        assert gradients[0][clear].equal(gradients[1][clear])
        plain = policy_loss(PolicyTokens(logp), tokens, replace(SAT_GSPO, rule=PPO()), stats, counts)
        cut += int((torch.autograd.grad(plain.loss, logp)[0] != gradients[0]).sum())
    assert cut > 0


def test_radius_without_a_gate_is_ppos():
    assert effective_radius(0.0, (0.2, 0.28), Hill()) == (0.2, 0.28)


@pytest.mark.parametrize("q", [1e-6, 1e-3, 0.05, 0.15, 0.3, 2.0, 20.0])
@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (1.0, 0.28), (0.0, 0.0)])
def test_radius_lies_between_the_quantile_and_ppos(q, low, high):
    down, up = effective_radius(q, (low, high), Hill())
    assert min(math.expm1(q), high) - 1e-12 <= up <= high + 1e-12
    assert min(-math.expm1(-q), low) - 1e-12 <= down <= low + 1e-12


@pytest.mark.parametrize("q", [1e-5, 1e-4, 1e-3])
def test_radius_of_a_small_quantile_is_the_cube_root_of_epsilon_q_squared(q):
    down, up = effective_radius(q, (0.2, 0.2), Hill())
    assert up == pytest.approx((0.2 * q * q) ** (1 / 3), rel=0.05)
    assert down == pytest.approx((0.2 * q * q) ** (1 / 3), rel=0.05)


def test_sat_stops_acting_once_the_quantile_passes_ppos_own_limit():
    beyond = -math.log1p(-0.2) + 1e-6
    assert effective_radius(beyond, (0.2, 0.2), Hill()) == pytest.approx((0.2, 0.2), abs=1e-12)


def test_readings_report_quantile_and_radii():
    low, high = effective_radius(0.02, (0.2, 0.28), Hill())
    got = SAT(epsilon_high=0.28).readings(Statistics({AbsoluteQuantile(0.9): torch.tensor(0.02)}))
    assert got == pytest.approx({"sat/q": 0.02, "sat/effective_radius_low": low, "sat/effective_radius_high": high})
