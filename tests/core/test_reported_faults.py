"""Faults that people met elsewhere, one test a kind: overflow, wrong weights, denominators, nothing to train on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from tests.golden.tables import assert_close, loss_and_gradient, recipe, tokens_with
from tether.core.advantage import GRPO, DrGRPO, is_flat
from tether.core.aggregation import Denominator, SeqMeanTokenMean, SeqMeanTokenSum, SeqMeanTokenSumNorm, TokenMean
from tether.core.examples import tokens_of
from tether.core.kl import K3
from tether.core.loss import measure_scope, policy_loss
from tether.core.measures import observed
from tether.core.ratio import Ratio
from tether.core.rule import PolicyTokens
from tether.core.seen import spans
from tether.core.statistics import AbsoluteQuantile, measure
from tether.core.tokens import TokenBatch
from tether.corrections.icepop import IcePop
from tether.corrections.tis import TIS
from tether.errors import ConfigError
from tether.proximal.anchor import AnchorProximal
from tether.proximal.old import OldProximal
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

NOBODY = torch.zeros(3, dtype=torch.bool)


def loss(values: list[list[float]], aggregation) -> float:
    """Aggregated losses of responses at ratio 1: a token's loss is minus its advantage."""
    sequence = [b for b, own in enumerate(values) for _ in own]
    flat = [x for own in values for x in own]
    tokens = tokens_with(behavior=[0.0] * len(flat), advantage=[-x for x in flat], sequence=sequence)
    terms, _ = loss_and_gradient(
        tokens, [0.0] * len(flat), recipe(PPO(), aggregation=aggregation), Denominator(len(flat), len(values))
    )
    return terms.loss.detach().item()


# --- the ratio -------------------------------------------------------------------------------------------------------


def test_a_masked_token_94_nats_away_overflows_nothing():
    tokens = tokens_with(behavior=[-95.0, -1.0], advantage=[1.0, 1.0])
    tokens = replace(tokens, trainable=torch.tensor([False, True]))
    terms, gradient = loss_and_gradient(tokens, [-1.0, -1.0], recipe(PPO()))
    assert terms.loss == -1.0
    assert gradient.tolist() == [0.0, -1.0]


def test_the_k3_penalty_of_a_policy_99_nats_below_its_reference_is_finite():
    tokens = replace(tokens_with(behavior=[-100.0], advantage=[0.0]), logp_reference=torch.tensor([-0.1]))
    terms, gradient = loss_and_gradient(tokens, [-100.0], recipe(PPO(), kl=K3(coefficient=1.0)))
    assert terms.loss.isfinite()
    assert gradient.isfinite().all()


def test_a_tis_weight_is_made_of_old_and_behavior_never_of_the_current_policy():
    tokens = tokens_with(behavior=[-1.0], proximal=[-1.1], advantage=[1.0])
    terms, _ = loss_and_gradient(tokens, [-0.7], recipe(PPO(), corrections=(TIS(),)))
    assert_close(terms.weights["tis"], [math.exp(-0.1)])


def test_old_log_probs_recomputed_with_the_current_weights_are_refused_where_nothing_else_corrects():
    with pytest.raises(ConfigError, match="the ratio cannot see how stale the data are"):
        recipe(PPO(), proximal=AnchorProximal())
    assert recipe(PPO(), proximal=OldProximal())


@pytest.mark.parametrize(("dual_clip", "wanted"), [(None, 50.0), (3.0, 3.0)])
def test_a_bad_token_at_ratio_50_costs_50_or_the_dual_clip(dual_clip, wanted):
    tokens = tokens_with(behavior=[0.0], advantage=[-1.0])
    assert_close(loss_and_gradient(tokens, [math.log(50)], recipe(PPO(dual_clip=dual_clip)))[0].loss, wanted)


@pytest.mark.parametrize(("level", "wanted"), [("product", math.exp(-3.0)), ("sequence", math.exp(-0.003))])
def test_the_level_of_a_weight_is_said_and_its_value_reported(level, wanted):
    tokens = tokens_with(behavior=[0.0] * 1000, proximal=[-0.003] * 1000, advantage=[1.0] * 1000, sequence=[0] * 1000)
    terms, _ = loss_and_gradient(tokens, [-0.003] * 1000, recipe(PPO(), corrections=(TIS(level=level),)))
    torch.testing.assert_close(terms.weights["tis"], torch.full((1000,), wanted), rtol=1e-4, atol=0)


def test_a_long_bad_answer_does_not_outweigh_a_short_good_one_under_the_mean_over_responses():
    assert loss([[-1.0], [1.0] * 9], SeqMeanTokenMean()) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(("mine", "theirs"), [(0.0, 1.0), (1.0, 0.0)])
def test_masked_tokens_leak_into_nothing_whatever_they_are_filled_with(mine, theirs):
    tokens = tokens_with(behavior=[-1.0, theirs, -2.0], advantage=[1.0] * 3, sequence=[0, 0, 0])
    tokens = replace(tokens, trainable=torch.tensor([True, False, True]))
    logp = torch.tensor([-1.1, mine, -1.9])
    terms, gradient = loss_and_gradient(tokens, logp, recipe(SAT(), level="sequence"))
    assert gradient[1] == 0.0
    seen = observed([(logp, tokens)], [terms], spans([tokens]))
    assert seen["mismatch/max"].value == pytest.approx(0.1, abs=1e-6)
    assert seen["mismatch/max"].count == 2


def test_bfloat16_log_probs_become_float32_before_they_are_subtracted():
    tokens = tokens_with(behavior=[-1.0078125, -2.0], advantage=[1.0, 1.0])
    low = torch.tensor([-1.0, -2.015625], dtype=torch.bfloat16)
    counts, algorithm = Denominator(2, 2), recipe(PPO())
    terms = policy_loss(PolicyTokens(low), tokens, algorithm, measure_scope(algorithm, [(low, tokens)]), counts)
    assert terms.loss.dtype == torch.float32
    assert_close(terms.loss, -math.exp(0.0078125) - math.exp(-0.015625))


# --- masks and denominators ------------------------------------------------------------------------------------------


def test_a_dropped_token_stays_in_the_denominator():
    ratios = [1.0, 0.2, 3.0, 1.5]
    tokens = tokens_with(behavior=[0.0] * 4, advantage=[-1.0] * 4)
    mask = IcePop(form="mask", edge="total", alpha=0.5, beta=2.0)
    algorithm = recipe(PPO(), corrections=(mask,), aggregation=TokenMean())
    terms, _ = loss_and_gradient(tokens, [math.log(r) for r in ratios], algorithm)
    assert terms.weights["icepop"].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert_close(terms.loss, (1.0 + 1.5) / 4)


@pytest.mark.parametrize(
    ("values", "aggregation", "wanted"),
    [
        ([[1.0, 1.0], [1.0] * 4], SeqMeanTokenSum(), 3.0),
        ([[1.0, 1.0], [3.0] * 8], TokenMean(), 2.6),
        ([[1.0] * 5], SeqMeanTokenSumNorm(horizon=10), 0.5),
    ],
    ids=["sums are not divided by lengths", "tokens of the batch count the same", "the horizon is a constant"],
)
def test_each_aggregation_divides_by_what_its_name_says(values, aggregation, wanted):
    assert loss(values, aggregation) == pytest.approx(wanted)


# --- nothing to train on ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["token", "sequence", "product"])
def test_a_step_in_which_everything_is_masked_has_a_loss_of_zero_and_no_metric_that_is_nan(level):
    tokens = replace(tokens_with(behavior=[math.nan] * 3, advantage=[1.0] * 3, sequence=[0, 0, 1]), trainable=NOBODY)
    logp = torch.full((3,), math.nan)
    terms, gradient = loss_and_gradient(tokens, logp, recipe(SAT(), level=level), Denominator(0, 0))
    assert terms.loss == 0.0
    assert not gradient.any()
    for metric in observed([(logp, tokens)], [terms], spans([tokens])).values():
        values = metric.value.values() if isinstance(metric.value, dict) else [metric.value]
        assert all(math.isfinite(value) for value in values)


def test_one_empty_micro_batch_changes_no_gradient_of_the_others():
    tokens, logp = tokens_of(log_ratio=[0.1, -0.2], advantage=[1.0, -1.0])
    algorithm, counts = recipe(SAT()), Denominator(2, 2)
    nothing = tokens.select(torch.zeros(2, dtype=torch.bool))
    parts = [(logp, tokens), (logp[:0], nothing)]
    stats = measure_scope(algorithm, parts)
    total = sum(policy_loss(PolicyTokens(x), t, algorithm, stats, counts).loss for x, t in parts)
    (gradient,) = torch.autograd.grad(total, logp)
    alone = policy_loss(PolicyTokens(logp), tokens, algorithm, measure_scope(algorithm, parts[:1]), counts).loss
    assert torch.equal(gradient, torch.autograd.grad(alone, logp)[0])


def test_one_response_alone_is_never_gated_and_still_learns():
    tokens, logp = tokens_of(log_ratio=[0.1] * 4, advantage=[1.0] * 4, sequence=[0] * 4)
    terms, gradient = loss_and_gradient(tokens, logp, recipe(SAT(), level="sequence"))
    assert not terms.marks["sat/gate_fraction"].value.any()
    assert (gradient < 0).all()


@pytest.mark.parametrize("rewards", [[0.4] * 4, [1.0, 1.0, 1.0 + 1e-9]], ids=["equal", "equal but for rounding"])
@pytest.mark.parametrize("advantage", [GRPO(), DrGRPO()], ids=["grpo", "dr-grpo"])
def test_a_flat_group_has_no_advantage_at_all(advantage, rewards):
    given = torch.tensor(rewards, dtype=torch.float64)
    assert is_flat(given)
    assert not advantage(given).any()


def test_a_single_loser_makes_a_group_worth_training_on():
    assert not is_flat(torch.tensor([0.0] + [0.95] * 7, dtype=torch.float64))


# --- size ------------------------------------------------------------------------------------------------------------


def test_a_quantile_of_more_than_two_to_the_24_values_is_exact():
    size = (1 << 24) + 3
    d = torch.arange(size, dtype=torch.float64).div_(size).float()
    row = torch.zeros(1, dtype=torch.int64).expand(size)
    zero = torch.zeros(1).expand(size)
    tokens = TokenBatch(
        logp_behavior=zero,
        logp_proximal=zero,
        advantage=zero,
        trainable=torch.ones(1, dtype=torch.bool).expand(size),
        sequence=row,
        group=row,
        staleness=row,
    )
    one = AbsoluteQuantile(0.9)
    assert measure([(d, tokens)], [one])[one] == d.kthvalue(math.ceil(0.9 * size - 1e-9)).values


def test_a_quantile_of_nothing_is_zero_and_gates_nothing():
    tokens = replace(tokens_with(behavior=[0.0] * 3, advantage=[1.0] * 3), trainable=NOBODY)
    stats = measure_scope(recipe(SAT()), [(torch.zeros(3), tokens)])
    assert stats[Ratio("clipped", "token")][AbsoluteQuantile(0.9)] == 0.0


def test_a_rank_without_tokens_takes_part_in_the_measurement():
    tokens, logp = tokens_of(log_ratio=[0.1 * i for i in range(20)], advantage=[1.0] * 20)
    nothing = tokens.select(torch.zeros(20, dtype=torch.bool))
    one = AbsoluteQuantile(0.9)
    alone = measure([(logp.detach(), tokens)], [one])[one]
    shares: list[torch.Tensor] = []

    def across(here: torch.Tensor) -> list[torch.Tensor]:
        shares.append(here)
        return [here, torch.zeros_like(here)]  # what a rank without a token counts

    assert measure([(logp.detach(), tokens)], [one], across)[one] == alone
    empty = [one.local(logp.detach()[:0], nothing, ()), one.local(logp.detach()[:0], nothing, (shares[0],))]
    assert not any(share.any() for share in empty)
