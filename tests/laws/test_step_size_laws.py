"""Laws of every registered step size: a factor in (0, 1], the same for every split and order of responses."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tether.core.examples import tokens_of
from tether.core.loss import measure_traits
from tether.core.ratio import Level
from tether.core.statistics import Part, Statistic
from tether.core.step_size import StepSize
from tether.core.step_sizes.drift_budget import DriftBudget
from tether.core.step_sizes.vcpo import VCPO
from tether.registry import STEP_SIZES

from .batches import batches, built

STEPS: dict[str, StepSize] = {
    **{name: built(STEP_SIZES, name) for name in STEP_SIZES.names()},
    "vcpo, linear": VCPO(rule="linear", base=0.5),
    "vcpo, clipped": VCPO(clip=2.0),
    "drift-budget, wide": DriftBudget(target=0.3),
}
everyone = pytest.mark.parametrize("step_size", STEPS.values(), ids=STEPS)
few = settings(max_examples=25)


def factor(step_size: StepSize, parts: list[Part], level: Level = "token") -> Tensor:
    stats = measure_traits([step_size.traits], level, parts)
    return step_size(stats[step_size.traits.measured(level)])


def assert_same(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=0.0)


@everyone
@given(drawn=batches(), scale=st.sampled_from([0.0, 1.0, 1e3]))
@few
def test_the_factor_is_finite_and_in_0_to_1_without_gradient(step_size, drawn, scale):
    tokens, logp = drawn
    got = factor(step_size, [(tokens.logp_behavior + scale * (logp - tokens.logp_behavior), tokens)])
    assert got.shape == ()
    assert 0 < got <= 1
    assert not got.requires_grad


@everyone
@given(drawn=batches(), cut=st.integers(0, 12), seed=st.integers(0, 2**31 - 1))
@few
def test_any_split_by_response_and_any_order_gives_the_same_factor(step_size, drawn, cut, seed):
    tokens, logp = drawn
    whole = factor(step_size, [(logp, tokens)])
    before = tokens.sequence < cut
    sides = [(logp[side], tokens.select(side)) for side in (~before, before)]
    assert_same(factor(step_size, sides), whole)
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    present = {f.name: x[order] for f in dataclasses.fields(tokens) if (x := getattr(tokens, f.name)) is not None}
    mixed = factor(step_size, [(logp[order], dataclasses.replace(tokens, **present))])
    torch.testing.assert_close(mixed, whole, rtol=1e-5, atol=0.0)  # core adds up a response's d in float32


@everyone
@given(drawn=batches(), cut=st.integers(0, 12))
@few
def test_ranks_reduce_like_micro_batches(step_size, drawn, cut):
    tokens, logp = drawn
    d = logp - tokens.logp_behavior
    before = tokens.sequence < cut
    statistic: Statistic
    for statistic in step_size.traits.needs:
        assert statistic.rounds == 1
        shares = [statistic.local(d[side], tokens.select(side), ()) for side in (before, ~before)]
        ranks = statistic.reduce([statistic.reduce([share]) for share in shares])
        assert_same(statistic.finish((ranks,)), statistic.finish((statistic.reduce(shares),)))


@everyone
@given(drawn=batches(), poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
@few
def test_untrainable_tokens_are_not_counted(step_size, drawn, poison):
    tokens, logp = drawn
    spoiled = torch.where(tokens.trainable, logp, poison)
    assert factor(step_size, [(spoiled, tokens)]).equal(factor(step_size, [(logp, tokens)]))
    for statistic in step_size.traits.needs:
        local = statistic.local(spoiled, tokens, ())
        assert local.equal(statistic.local(logp, tokens, ()))


@everyone
@given(drawn=batches())
@few
def test_the_level_of_the_recipe_does_not_matter(step_size, drawn):
    tokens, logp = drawn
    answers = [factor(step_size, [(logp, tokens)], level) for level in ("token", "sequence", "product")]
    assert answers[0].equal(answers[1])
    assert answers[0].equal(answers[2])


@everyone
def test_without_trainable_tokens_the_rate_stays(step_size):
    tokens, logp = tokens_of(log_ratio=[3.0, -5.0], advantage=[1.0, 1.0])
    nobody = tokens.select(torch.zeros(2, dtype=torch.bool))
    assert factor(step_size, [(logp[:0], nobody)]) == 1.0


@everyone
def test_on_policy_the_rate_stays(step_size):
    tokens, logp = tokens_of(log_ratio=[0.0] * 5, advantage=[1.0] * 5, sequence=[0, 0, 1, 1, 1])
    assert factor(step_size, [(logp, tokens)]).item() == pytest.approx(1.0, abs=1e-15)


@given(drawn=batches(), target=st.floats(1e-3, 1.0))
@few
def test_a_drift_of_twice_the_target_halves_the_rate(drawn, target):
    tokens, logp = drawn
    assume(tokens.trainable.any())
    d = (logp - tokens.logp_behavior)[tokens.trainable].double().abs().mean().item()
    assume(1e-3 < d < 10)
    assert factor(DriftBudget(target=d / 2), [(logp, tokens)]).item() == pytest.approx(0.5, rel=1e-6)
    assert factor(DriftBudget(target=target), [(logp, tokens)]).item() == pytest.approx(min(1, target / d), rel=1e-6)


@given(drawn=batches(), clip=st.sampled_from([None, 1.5]))
@few
def test_vcpo_counts_a_response_once_whatever_its_length(drawn, clip):
    tokens, logp = drawn
    d = (logp - tokens.logp_behavior).double()
    sums = [d[(tokens.sequence == b) & tokens.trainable] for b in tokens.sequence.unique()]
    w = torch.tensor([math.exp(min(20.0, max(-20.0, x.sum().item()))) for x in sums if len(x)], dtype=torch.float64)
    assume(len(w))
    w = w.clamp(max=clip or math.inf)
    share = (w.sum().square() / (len(w) * w.square().sum())).item()
    assert factor(VCPO(clip=clip), [(logp, tokens)]).item() == pytest.approx(math.sqrt(share), rel=1e-4)
    assert factor(VCPO(rule="linear", base=0.5, clip=clip), [(logp, tokens)]).item() == pytest.approx(
        min(1.0, share / 0.5), rel=1e-4
    )


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (VCPO, {"base": 0.0}, r"base of vcpo must lie in \(0, 1\] \(1 is usual\); got 0.0"),
        (VCPO, {"base": math.nan}, "base of vcpo must"),
        (VCPO, {"clip": 0.5}, r"clip of vcpo must lie in \[1, 1e9\]"),
        (VCPO, {"clip": math.inf}, "clip of vcpo must"),
        (DriftBudget, {"target": 0.0}, r"target of drift-budget must lie in \(0, 20\] \(0.01 is usual\); got 0.0"),
        (DriftBudget, {"target": math.inf}, "target of drift-budget must"),
    ],
)
def test_options_out_of_range_are_refused(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)
