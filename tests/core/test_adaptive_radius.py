"""``adaptive-radius`` is ``sat`` in gradient: PPO with one pair of radii, found on the device."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from tether.core.examples import tokens_of
from tether.core.kernels import Exponential, Gaussian, Hill, Reciprocal, Step
from tether.core.rule import PolicyTokens
from tether.core.statistics import AbsoluteQuantile, Statistics
from tether.core.surrogate import effective_radii, effective_radius
from tether.rules.adaptive_radius import AdaptiveRadius
from tether.rules.ppo import PPO
from tether.rules.sat import SAT
from tether.scales.absolute import Absolute
from tether.scales.per_staleness import PerStaleness
from tether.scales.per_turn import PerTurn

from .heavy import SHAPES, applied, log_ratios, measured, tokens_at

Q = AbsoluteQuantile(0.9)
KERNELS = [Hill(), Hill(0.5), Hill(8.0), Exponential(), Gaussian(), Reciprocal(), Step()]
with_every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)
RADII = [(0.2, 0.2), (0.2, 0.28), (0.05, 0.9), (1.0, 0.01), (3e-3, 4e-3)]
SCALES = (6e-4, 0.03, 0.12, 1.0)
ROUNDING = 1.2e-7
"""Of a ratio near 1, in float32."""


@with_every_kernel
@pytest.mark.parametrize("shape", SHAPES)
def test_gradient_is_sats_to_the_last_bit(kernel, shape):
    """On every token, but that a ratio within one rounding of the end may fall on either side of it."""
    cut = apart = 0
    for (low, high), scale in itertools.product(RADII, SCALES):
        d = log_ratios(shape, 4000, scale=scale, seed=int(1e4 * scale))
        tokens, d = tokens_at(d, seed=7)
        options = {"epsilon_low": low, "epsilon_high": high, "kernel": kernel}
        _, wanted = applied(SAT(**options), tokens, d)
        out, gradient = applied(AdaptiveRadius(**options), tokens, d)
        q = float(measured(SAT(**options), tokens, d)[Q])
        down, up = effective_radius(q, (low, high), kernel)
        r = d.detach().double().exp()
        clear = ((r - (1.0 + up)).abs() > ROUNDING) & ((r - (1.0 - down)).abs() > ROUNDING)
        assert gradient[clear].equal(wanted[clear])
        cut += int(out.marks["sat/newly_cut_fraction"].value.sum())
        apart += int((gradient != wanted).sum())
    assert cut > 0
    assert apart <= 2


@pytest.mark.parametrize("kernel", [Hill(), Step()], ids=str)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_token_at_the_quantile_keeps_its_gradient(kernel, sign):
    """The gate is strict: the token that q was taken from, and its ties, are PPO's, however ``e^q`` is rounded."""
    for at in torch.linspace(0.1, 0.18, 60).tolist():
        tokens, d = tokens_of(log_ratio=[sign * at] * 12, advantage=[sign] * 12)
        out, gradient = applied(AdaptiveRadius(kernel=kernel), tokens, d)
        assert out.active.all()
        assert (gradient != 0).all()


@pytest.mark.parametrize("log_ratio", [[0.0] * 90 + [2.0, -4.0, 0.1, 0.2, -0.3], [2.0, -4.0, 0.3, -0.2]])
def test_without_a_gate_or_beyond_it_every_bit_is_ppos(log_ratio):
    for thousandth in range(1, 1000, 23):
        radii = {"epsilon_low": thousandth / 1000, "epsilon_high": 1.0 - thousandth / 1000}
        tokens, d = tokens_of(log_ratio=log_ratio, advantage=[-1.0 if x < 0 else 1.0 for x in log_ratio])
        (ppo, wanted), (out, gradient) = applied(PPO(**radii), tokens, d), applied(AdaptiveRadius(**radii), tokens, d)
        assert out.objective.equal(ppo.objective)
        assert gradient.equal(wanted)


def test_the_loss_is_not_sats_where_a_token_is_held():
    """Why it is another rule: SAT's objective of a held token falls with its distance, this one's is the one end."""
    tokens, d = tokens_of(log_ratio=[0.01] * 30 + [0.1, 0.15], advantage=[1.0] * 32)
    sat, one = (applied(rule(), tokens, d)[0].objective[30:] for rule in (SAT, AdaptiveRadius))
    assert sat[0] > sat[1]
    assert one[0] == one[1] > sat[0]


@with_every_kernel
def test_radii_on_the_device_are_those_of_the_log(kernel):
    for q in (0.0, 1e-6, 0.003, 0.05, 0.15, 0.3, 20.0):
        for radii in RADII:
            low, high = effective_radii(torch.tensor(q, dtype=torch.float64), radii, kernel)
            assert (float(low), float(high)) == effective_radius(q, radii, kernel)
            assert (low.dtype, high.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize("q", [0.003, 0.02, 0.15])
def test_a_step_kernel_makes_the_quantile_itself_the_limit(q):
    low, high = effective_radius(q, (0.2, 0.2), Step())
    assert low == pytest.approx(-math.expm1(-q), rel=1e-12)
    assert high == pytest.approx(math.expm1(q), rel=1e-12)


@with_every_kernel
def test_nothing_waits_for_the_device(kernel):
    """Tensors without values: whatever asked for one would raise."""
    tokens, logp = tokens_of(log_ratio=[0.1] * 5, advantage=[1.0] * 5)
    fields = {name: getattr(tokens, name) for name in tokens.__slots__}
    empty = type(tokens)(**{name: None if x is None else x.to("meta") for name, x in fields.items()})
    stats = Statistics({Q: torch.empty((), device="meta")})
    d = logp.detach().to("meta").requires_grad_()
    out = AdaptiveRadius(kernel=kernel, dual_clip=3.0)(d, PolicyTokens(d), empty, stats)
    out.objective.sum().backward()
    assert d.grad.shape == (5,)


def test_readings_are_the_quantile_and_the_radii_in_use():
    d = log_ratios("laplace", 600, scale=0.02, seed=0)
    tokens, d = tokens_at(d, seed=1)
    rule = AdaptiveRadius()
    stats = measured(rule, tokens, d)
    assert rule.readings(stats) == SAT().readings(stats)


def test_scale_may_be_any_that_gives_one_number():
    rule = AdaptiveRadius(scale=Absolute(value=0.02))
    tokens, d = tokens_of(log_ratio=[0.05, 0.03], advantage=[1.0, 1.0])
    assert rule.traits.needs == ()
    assert applied(rule, tokens, d)[0].active.tolist() == [False, True]
    assert rule.readings(Statistics({}))["sat/q"] == 0.02


@pytest.mark.parametrize("scale", [PerTurn(), PerStaleness()], ids=["per-turn", "per-staleness"])
def test_one_q_a_token_is_refused(scale):
    with pytest.raises(ValueError, match=r"scale of adaptive-radius must give one q for all tokens.*got per-"):
        AdaptiveRadius(scale=scale)


def test_dual_clip_comes_last():
    tokens, d = tokens_of(log_ratio=[0.0] * 9 + [2.0], advantage=[-1.0] * 10)
    out, gradient = applied(AdaptiveRadius(dual_clip=3.0), tokens, d)
    assert out.objective[-1] == -3.0
    assert gradient[-1] == 0.0
    assert not AdaptiveRadius(dual_clip=3.0).traits.keeps_pull_back
