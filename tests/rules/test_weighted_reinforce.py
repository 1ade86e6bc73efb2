"""CISPO, DIS, truncated REINFORCE and UP: REINFORCE under a detached weight."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings

from tests.laws.batches import LEVELS, algorithm_of, batches, terms_and_gradient
from tether.core.examples import tokens_of
from tether.core.rule import PolicyTokens
from tether.core.statistics import Statistics
from tether.rules.cispo import CISPO
from tether.rules.dis import DIS
from tether.rules.ppo import PPO
from tether.rules.tis_reinforce import TISReinforce
from tether.rules.up import UP

few = settings(max_examples=20)


def slopes(rule, ratios: list[float], advantage: float = 1.0) -> list[float]:
    tokens, logp = tokens_of(log_ratio=[math.log(r) for r in ratios], advantage=[advantage] * len(ratios))
    rule(logp, PolicyTokens(logp), tokens, Statistics({})).objective.sum().backward()
    return [round(x, 5) for x in logp.grad.tolist()]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_cispo_bounds_the_weight_below_only_if_asked(advantage):
    ratios = [0.1, 0.9, 1.1, 9.0]
    assert slopes(CISPO(), ratios, advantage) == [advantage * x for x in (0.1, 0.9, 1.1, 1.2)]
    assert slopes(CISPO(epsilon_low=0.3), ratios, advantage) == [advantage * x for x in (0.7, 0.9, 1.1, 1.2)]


@pytest.mark.parametrize("level", LEVELS)
@given(drawn=batches())
@few
def test_truncated_reinforce_is_cispo_whose_bound_is_the_cap(level, drawn):
    truncated, gradient = terms_and_gradient(drawn, algorithm_of(TISReinforce(cap=5.0), level=level))
    clipped, wanted = terms_and_gradient(drawn, algorithm_of(CISPO(epsilon_high=4.0), level=level))
    assert truncated.loss.equal(clipped.loss)
    assert gradient.equal(wanted)


def test_the_interval_of_dis_is_open_at_both_ends():
    ends = torch.tensor([0.5, 2.0])
    log_ratio = ends.log()
    assert log_ratio.exp().equal(ends), "ratios that float32 holds exactly"
    tokens, logp = tokens_of(log_ratio=[0.0, 0.0], advantage=[1.0, 1.0])
    for epsilon, is_kept in ((0.0, False), (1e-6, True)):
        rule = DIS(epsilon_low=0.5 + epsilon, epsilon_high=1.0 + epsilon)
        out = rule(log_ratio, PolicyTokens(logp), tokens, Statistics({}))
        assert out.active.tolist() == [is_kept, is_kept]


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_dis_drops_what_lies_outside_whichever_way_it_moves(advantage):
    assert slopes(DIS(), [0.69, 0.71, 5.9, 6.1], advantage) == [0.0, 0.71 * advantage, 5.9 * advantage, 0.0]


@pytest.mark.parametrize("level", LEVELS)
@given(drawn=batches(advantages=(-1.5, -1.0, 0.5, 2.0)))
@few
def test_up_is_reinforce_on_good_tokens_and_ppo_on_bad_ones(level, drawn):
    tokens, _ = drawn
    terms, gradient = terms_and_gradient(drawn, algorithm_of(UP(dual_clip=3.0), level=level))
    ppo, wanted = terms_and_gradient(drawn, algorithm_of(PPO(dual_clip=3.0), level=level))
    good = tokens.trainable & (tokens.advantage > 0)
    assert gradient[good].equal(-tokens.advantage[good])
    assert terms.active[good].all()
    assert gradient[~good].equal(wanted[~good])
    assert terms.active[~good].equal(ppo.active[~good])


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (CISPO, {"epsilon_low": 1.5}, r"epsilon_low of cispo must lie in \[0, 1\]; got 1.5"),
        (CISPO, {"epsilon_high": math.inf}, "epsilon_high of cispo must be finite and >= 0; got inf"),
        (DIS, {"epsilon_low": 0.0}, r"epsilon_low of dis must lie in \(0, 1\] \(0.3 is usual\); got 0.0"),
        (DIS, {"epsilon_high": math.nan}, "epsilon_high of dis must .*got nan"),
        (TISReinforce, {"cap": 0.0}, r"cap of tis-reinforce must lie in \[1, 1e\+09\] \(5 is usual\); got 0.0"),
        (UP, {"epsilon_low": -0.1}, r"epsilon_low of up must lie in \[0, 1\]; got -0.1"),
        (UP, {"dual_clip": 1.0}, r"dual_clip of up must be greater than 1 \(3 is usual\); got 1.0"),
    ],
)
def test_options_out_of_range_are_refused(rule, options, message):
    with pytest.raises(ValueError, match=message):
        rule(**options)
