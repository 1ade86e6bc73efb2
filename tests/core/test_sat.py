"""SAT's exact properties P1-P11 (methods.md 6.8), on heavy-tailed tokens, with every kernel."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.golden.tables import loss_and_gradient, recipe
from tether.core.aggregation import Denominator
from tether.core.examples import tokens_of
from tether.core.kernels import Exponential, Gaussian, Hill, Reciprocal, Step
from tether.core.rule import PolicyTokens
from tether.core.statistics import AbsoluteQuantile, Statistics
from tether.rules.ppo import PPO
from tether.rules.sat import SAT
from tether.scales.quantile import Quantile

from .heavy import SHAPES, applied, intervals, log_ratios, measured, tokens_at

Q = AbsoluteQuantile(0.9)
RADII = [(0.2, 0.2), (0.2, 0.28), (0.6, 0.03), (3e-4, 4e-4)]
KERNELS = [Hill(), Hill(4.0), Exponential(), Gaussian(), Reciprocal(), Step()]
with_every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)
on_every_batch = pytest.mark.parametrize(
    ("kernel", "shape", "scale", "low", "high"),
    [
        *((Hill(), shape, scale, *radii) for shape in SHAPES for scale in (0.003, 0.05, 0.8) for radii in RADII),
        *((kernel, shape, 0.05, 0.2, 0.28) for kernel in KERNELS[1:] for shape in SHAPES),
        *((kernel, "student", 0.05, 3e-4, 4e-4) for kernel in KERNELS[1:]),
    ],
)


def pair(low: float, high: float, **options) -> tuple[PPO, SAT]:
    return PPO(epsilon_low=low, epsilon_high=high), SAT(epsilon_low=low, epsilon_high=high, **options)


def batch(shape: str, scale: float, size: int = 600):
    return tokens_at(log_ratios(shape, size, scale=scale, seed=size), seed=1)


def gate_of(rule, tokens, d):
    return d.detach().abs() > measured(rule, tokens, d)[Q]


@on_every_batch
def test_p1_the_ends_lie_inside_ppos_strictly_on_exactly_the_gated_tokens(kernel, shape, scale, low, high):
    _, sat = pair(low, high, kernel=kernel)
    tokens, d = batch(shape, scale)
    lower, upper = intervals(sat, tokens, d)
    base_lower, base_upper = torch.tensor(1 - low), torch.tensor(1 + high)
    assert ((lower >= base_lower) & (upper <= base_upper)).all()
    gate = gate_of(sat, tokens, d)
    assert (upper < base_upper).equal(gate)
    assert (lower > base_lower).equal(gate)
    assert gate.any()


@on_every_batch
def test_p2_the_surrogate_is_never_above_ppos(kernel, shape, scale, low, high):
    ppo, sat = pair(low, high, kernel=kernel)
    tokens, d = batch(shape, scale)
    assert (applied(sat, tokens, d)[0].objective <= applied(ppo, tokens, d)[0].objective).all()


@on_every_batch
def test_p3_gradients_differ_exactly_on_the_newly_cut_band_where_sats_is_zero(kernel, shape, scale, low, high):
    ppo, sat = pair(low, high, kernel=kernel)
    tokens, d = batch(shape, scale)
    (_, g_ppo), (out, g_sat) = applied(ppo, tokens, d), applied(sat, tokens, d)
    lower, upper = intervals(sat, tokens, d)
    r, a = d.detach().exp(), tokens.advantage
    above = (a > 0) & (r > upper) & (r <= torch.tensor(1 + high))
    below = (a < 0) & (r < lower) & (r >= torch.tensor(1 - low))
    band = above | below
    assert (g_ppo != g_sat).equal(band)
    assert not g_sat[band].any()
    assert g_ppo[band].equal((a * r)[band])
    assert out.marks["sat/newly_cut_fraction"].value.bool().equal(band)


@with_every_kernel
def test_p3_the_band_is_not_empty_on_these_batches(kernel):
    cut = [
        applied(SAT(kernel=kernel), *batch(shape, 0.05))[0].marks["sat/newly_cut_fraction"].value.sum()
        for shape in SHAPES
    ]
    assert all(x > 0 for x in cut)


@with_every_kernel
@pytest.mark.parametrize("scale", [0.05, 1.0, 20.0])
@pytest.mark.parametrize(("low", "high"), RADII)
def test_p4_pull_back_gradients_are_ppos_bits_for_any_ratio(kernel, scale, low, high):
    ppo, sat = pair(low, high, kernel=kernel)
    tokens, d = batch("student", scale)
    (_, g_ppo), (out, g_sat) = applied(ppo, tokens, d), applied(sat, tokens, d)
    inward = tokens.advantage * d.detach() <= 0
    assert g_sat[inward].equal(g_ppo[inward])
    assert out.active[inward].all()


@with_every_kernel
@pytest.mark.parametrize("eta", [1e-3, 0.1, 1.0])
def test_p5_one_step_on_the_band_moves_the_ratio_less_far_than_ppo(kernel, eta):
    ppo, sat = pair(0.2, 0.2, kernel=kernel)
    tokens, d = batch("laplace", 0.05)
    (_, g_ppo), (out, g_sat) = applied(ppo, tokens, d), applied(sat, tokens, d)
    band = out.marks["sat/newly_cut_fraction"].value.bool()
    r = d.detach().exp()[band]
    moved_ppo, moved_sat = (r + eta * g[band] / r for g in (g_ppo, g_sat))  # dS/dr = (dS/dlog r) / r
    assert len(r) > 5
    assert ((moved_sat - 1).abs() < (moved_ppo - 1).abs()).all()


@with_every_kernel
def test_p6_quantile_gate_and_radii_carry_no_gradient(kernel):
    """Autograd equals the central difference of ``min(r A, clip(r) A)`` with every token's interval held fixed."""
    tokens, d = batch("laplace", 0.05)
    sat, x, a = SAT(kernel=kernel), d.detach().double(), tokens.advantage.double()
    stats = Statistics({Q: measured(sat, tokens, d)[Q].double().requires_grad_()})
    doubled = dataclasses.replace(tokens, advantage=a)
    leaf = x.clone().requires_grad_()
    sat(leaf, PolicyTokens(leaf), doubled, stats).objective.sum().backward()
    assert stats[Q].grad is None
    lower, upper = intervals(sat, doubled, x, stats)

    def frozen(y: torch.Tensor) -> torch.Tensor:
        return torch.minimum(y.exp() * a, torch.minimum(torch.maximum(y.exp(), lower), upper) * a).detach()

    step = 1e-6
    smooth = ((x - upper.log()).abs() > 10 * step) & ((x - lower.log()).abs() > 10 * step)
    slope = (frozen(x + step) - frozen(x - step)) / (2 * step)
    assert smooth.sum() > 590
    torch.testing.assert_close(leaf.grad[smooth], slope[smooth], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
@with_every_kernel
def test_p7_contraction_does_not_change_when_all_log_ratios_are_scaled(shape, kernel):
    sat = SAT(kernel=kernel)
    tokens, d = batch(shape, 0.01)
    marks = applied(sat, tokens, d)[0].marks["sat/mean_contraction"]
    for factor in (0.125, 4.0):
        scaled = applied(sat, tokens, factor * d.detach())[0].marks["sat/mean_contraction"]
        assert scaled.value.equal(marks.value)
        assert scaled.among.equal(marks.among)
    scaled = applied(sat, tokens, 3.7 * d.detach())[0].marks["sat/mean_contraction"]
    torch.testing.assert_close(scaled.value, marks.value, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_p8_order_of_tokens_does_not_matter(shape):
    tokens, d = batch(shape, 0.05)
    order = torch.randperm(len(d), generator=torch.Generator().manual_seed(0))
    mixed = dataclasses.replace(tokens, advantage=tokens.advantage[order], sequence=tokens.sequence[order])
    out, gradient = applied(SAT(), tokens, d)
    out_mixed, gradient_mixed = applied(SAT(), mixed, d.detach()[order])
    assert out_mixed.objective.equal(out.objective[order])
    assert gradient_mixed.equal(gradient[order])


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_p9_padding_with_any_log_ratio_changes_nothing(level):
    d = log_ratios("student", 300, scale=0.05, seed=3)
    tokens, _ = tokens_of(log_ratio=d.tolist(), advantage=[1.0, -1.0, 0.5] * 100, sequence=[i // 6 for i in range(300)])
    padding = torch.arange(400) >= 300
    ids = torch.cat([tokens.sequence, torch.arange(100) % 50])
    longer, far = tokens_of(
        log_ratio=[*d.tolist(), *[1000.0, -1000.0, 0.0, 5.0] * 25],
        advantage=[*tokens.advantage.tolist(), *[7.0] * 100],
        sequence=ids.tolist(),
    )
    longer = dataclasses.replace(longer, trainable=~padding)
    denominator = Denominator(300, 50)
    terms, gradient = loss_and_gradient(tokens, d, recipe(SAT(), level=level), denominator)
    padded, padded_gradient = loss_and_gradient(longer, far.detach(), recipe(SAT(), level=level), denominator)
    torch.testing.assert_close(padded.loss, terms.loss)
    assert padded_gradient[:300].equal(gradient)
    assert not padded_gradient[300:].any()


# --- P10: bit-identity with the base ----------------------------------------------------------------------------------

FAR = [0.0, 2.0, -4.0, 0.1, -0.1, 0.5, -0.5, 1e-4, -1e-4]
"""Nine tokens, some beyond every radius: a held token's objective is the end of its interval, to the last bit."""


ROUNDED_APART = [
    i
    for i in range(1, 1000)
    if 1 + torch.tensor(i / 1000) != torch.tensor(1 + i / 1000)
    or 1 - torch.tensor(i / 1000) != torch.tensor(1 - i / 1000)
]
"""Radii, in thousandths, whose end of the interval depends on whether 1 +- epsilon is rounded before or after."""


def assert_bits_are_ppos(sat: SAT, ppo: PPO, log_ratio: list[float]) -> None:
    outward = [-1.0 if d < 0 else 1.0 for d in log_ratio]
    tokens, d = tokens_of(log_ratio=log_ratio, advantage=outward)
    (out, gradient), (wanted, wanted_gradient) = applied(sat, tokens, d), applied(ppo, tokens, d)
    assert out.objective.equal(wanted.objective)
    assert gradient.equal(wanted_gradient)
    assert out.active.equal(wanted.active)


@pytest.mark.parametrize(
    ("options", "log_ratio"),
    [
        ({"enabled": False}, [*FAR, *FAR, 0.7]),
        ({}, [*[0.0] * 90, *FAR]),
        ({}, FAR),
    ],
    ids=["disabled", "q = 0", "N < 10"],
)
def test_p10_loss_and_gradient_are_ppos_bits_at_every_radius_that_rounds(options, log_ratio):
    other = torch.randperm(999, generator=torch.Generator().manual_seed(0)) + 1
    for thousandth in ROUNDED_APART:
        ppo, sat = pair(thousandth / 1000, int(other[thousandth - 1]) / 1000, **options)
        assert_bits_are_ppos(sat, ppo, log_ratio)
        ppo, sat = pair(thousandth / 1000, thousandth / 1000, **options)
        assert_bits_are_ppos(sat, ppo, log_ratio)


def test_p10_multiplying_by_a_contraction_of_one_would_not_be_ppos_bits():
    """Why the rule selects a side instead: hundreds of radii would change PPO's loss."""
    assert len(ROUNDED_APART) == 498


def test_p10_disabled_needs_and_logs_nothing():
    sat = SAT(enabled=False)
    assert sat.traits.needs == ()
    assert sat.readings(Statistics({})) == {}
    tokens, d = tokens_of(log_ratio=FAR, advantage=[1.0] * 9)
    assert applied(sat, tokens, d, Statistics({}))[0].marks == {}


@pytest.mark.parametrize("shape", [*SHAPES, "ties"])
def test_p11_at_most_a_tenth_of_the_tokens_is_gated(shape):
    for size in (1, 5, 9, 10, 11, 19, 20, 99, 100, 101, 599):
        d = log_ratios("gauss" if shape == "ties" else shape, size, scale=0.05, seed=size)
        d = (d * 20).round() / 20 if shape == "ties" else d
        tokens, d = tokens_at(d, seed=0)
        gated = int(applied(SAT(), tokens, d)[0].marks["sat/gate_fraction"].value.sum())
        assert gated <= size // 10
        assert shape == "ties" or gated == size // 10


# --- options ----------------------------------------------------------------------------------------------------------


def test_dual_clip_comes_last():
    tokens, d = tokens_of(log_ratio=[0.0] * 5 + [0.01, -0.01, 0.02, -0.02, 2.0], advantage=[-1.0] * 10)
    plain, kept = applied(SAT(), tokens, d)
    floored, gradient = applied(SAT(dual_clip=3.0), tokens, d)
    assert plain.objective[-1] < -7.0
    assert floored.objective[-1] == -3.0
    assert kept[-1] != 0.0
    assert gradient[-1] == 0.0
    assert (bool(plain.active[-1]), bool(floored.active[-1])) == (True, False)
    assert floored.objective[:-1].equal(plain.objective[:-1])
    assert not SAT(dual_clip=3.0).traits.keeps_pull_back
    assert SAT().traits.keeps_pull_back


@pytest.mark.parametrize("rule", [PPO, SAT])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon_low": -0.1}, r"epsilon_low of \w+ must lie in \[0, 1\]; got -0.1"),
        ({"epsilon_low": 1.5}, r"epsilon_low of \w+ must lie in \[0, 1\]; got 1.5"),
        ({"epsilon_high": float("inf")}, r"epsilon_high of \w+ must be finite and >= 0; got inf"),
        ({"dual_clip": 1.0}, r"dual_clip of \w+ must be greater than 1 \(3 is usual\); got 1.0"),
    ],
)
def test_radii_that_are_no_interval_are_refused(rule, options, message):
    with pytest.raises(ValueError, match=message):
        rule(**options)


@pytest.mark.parametrize("quantile", [0.0, 1.5])
def test_sat_refuses_a_level_outside_its_range_when_it_is_made(quantile):
    with pytest.raises(ValueError, match="quantile must lie in"):
        SAT(scale=Quantile(level=quantile))


@pytest.mark.parametrize("exponent", [0.0, -1.0, 65.0])
def test_hill_refuses_an_exponent_outside_its_range(exponent):
    with pytest.raises(ValueError, match=r"exponent of the hill kernel must lie in \(0, 64\]"):
        Hill(exponent)
