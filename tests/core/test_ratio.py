"""Edges and levels of the log-ratio, the guard, and the token form of GSPO."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.golden.tables import Given, loss_and_gradient, recipe, tokens_with
from tether.core.aggregation import Denominator, SeqMeanTokenMean
from tether.core.examples import tokens_of
from tether.core.loss import measure_scope, policy_loss
from tether.core.ratio import LOG_RATIO_LIMIT, beyond_guard, edge_log_ratio, log_ratio
from tether.core.rule import PolicyTokens
from tether.core.tokens import TokenBatch
from tether.rules.ppo import PPO

OPEN = PPO(epsilon_low=1.0, epsilon_high=1e9)


@pytest.fixture
def triangle():
    """Two responses; behavior, proximal and current all differ."""
    noise = torch.Generator().manual_seed(0)
    behavior, proximal, logp = (-torch.rand(7, generator=noise) for _ in range(3))
    tokens = tokens_with(
        behavior=behavior.tolist(), proximal=proximal.tolist(), advantage=[1.0] * 7, sequence=[0, 0, 0, 0, 1, 1, 1]
    )
    return tokens, logp


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_total_is_weight_times_clipped(triangle, level):
    tokens, logp = triangle
    weight, clipped, total = (edge_log_ratio(e, logp, tokens, level) for e in ("weight", "clipped", "total"))
    torch.testing.assert_close(weight + clipped, total)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_only_edges_that_hold_the_current_policy_carry_gradient(triangle, level):
    tokens, logp = triangle
    leaf = logp.requires_grad_()
    assert edge_log_ratio("total", leaf, tokens, level).requires_grad
    assert edge_log_ratio("clipped", leaf, tokens, level).requires_grad
    assert not edge_log_ratio("weight", leaf, tokens, level).requires_grad


def test_guard_holds_value_kills_gradient_and_counts():
    d = torch.tensor([-1000.0, -19.5, 0.0, 19.5, 20.5], requires_grad=True)
    held = log_ratio(d, torch.zeros(5))
    held.sum().backward()
    assert held.tolist() == [-LOG_RATIO_LIMIT, -19.5, 0.0, 19.5, LOG_RATIO_LIMIT]
    assert d.grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert beyond_guard(d, torch.zeros(5)).tolist() == [True, False, False, False, True]


def test_ratios_are_float32_whatever_the_models_dtype():
    tokens, logp = tokens_of(log_ratio=[0.1, 0.3], advantage=[1.0, 1.0])
    half = logp.detach().to(torch.bfloat16).requires_grad_()
    algorithm = recipe(OPEN)
    stats = measure_scope(algorithm, [(half, tokens)])
    terms = policy_loss(PolicyTokens(half), tokens, algorithm, stats, Denominator(2, 2))
    terms.loss.backward()
    assert terms.loss.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    assert log_ratio(half, tokens.logp_behavior).dtype == torch.float32


# --- the token form of GSPO ------------------------------------------------------------------------------------------


def test_every_token_carries_the_ratio_of_its_response_and_only_its_own_gradient(triangle):
    tokens, logp = triangle
    leaf = logp.clone().requires_grad_()
    seen = edge_log_ratio("total", leaf, tokens, "sequence")
    for own in (tokens.sequence == 0, tokens.sequence == 1):
        mean = (logp - tokens.logp_behavior)[own].mean()
        torch.testing.assert_close(seen[own].detach(), mean.expand(int(own.sum())))
    (slope,) = torch.autograd.grad(seen[1], leaf)
    assert slope.tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_mask_on_one_token_removes_that_token_and_no_other(triangle):
    tokens, logp = triangle
    mask = Given((1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0), is_mask=True)
    _, whole = loss_and_gradient(tokens, logp, recipe(OPEN, level="sequence"))
    terms, masked = loss_and_gradient(tokens, logp, recipe(OPEN, level="sequence", corrections=(mask,)))
    assert masked.equal(whole * torch.tensor(mask.values))
    assert (whole != 0).all()
    assert not terms.active[1]
    assert terms.active.sum() == 6


def test_untrainable_tokens_do_not_enter_the_mean(triangle):
    tokens, logp = triangle
    shorter = dataclasses.replace(tokens, trainable=torch.tensor([True, True, True, False, True, True, True]))
    seen = edge_log_ratio("total", torch.where(shorter.trainable, logp, 0.0), shorter.neutralized(), "sequence")
    torch.testing.assert_close(seen[0], (logp - tokens.logp_behavior)[:3].mean())


def test_order_inside_a_response_and_of_responses_does_not_matter(triangle):
    tokens, logp = triangle
    algorithm = recipe(PPO(), level="sequence", aggregation=SeqMeanTokenMean())
    terms, gradient = loss_and_gradient(tokens, logp, algorithm)
    order = torch.tensor([4, 2, 0, 6, 1, 3, 5])
    renamed = dataclasses.replace(
        tokens,
        logp_behavior=tokens.logp_behavior[order],
        logp_proximal=tokens.logp_proximal[order],
        sequence=1 - tokens.sequence[order],
    )
    mixed, mixed_gradient = loss_and_gradient(renamed, logp[order], algorithm)
    torch.testing.assert_close(mixed.loss, terms.loss)
    torch.testing.assert_close(mixed_gradient, gradient[order])


def test_shifting_log_ratio_between_tokens_of_a_response_does_not_matter(triangle):
    """The ratio is a geometric mean: deviations of opposite sign cancel."""
    tokens, logp = triangle
    moved = logp + torch.tensor([0.3, -0.3, 0.0, 0.0, 0.1, 0.1, -0.2])
    one, other = (edge_log_ratio("total", x, tokens, "sequence") for x in (logp, moved))
    torch.testing.assert_close(one, other)


def test_both_levels_agree_on_responses_of_one_token():
    tokens, logp = tokens_of(log_ratio=[0.1, -0.4, 0.3], advantage=[1.0, -1.0, 2.0])
    (one, g_one), (other, g_other) = (
        loss_and_gradient(tokens, logp, recipe(PPO(), level=level)) for level in ("token", "sequence")
    )
    assert one.loss.equal(other.loss)
    assert g_one.equal(g_other)


# --- the noun --------------------------------------------------------------------------------------------------------


def test_fields_of_a_batch_share_one_shape():
    tokens, _ = tokens_of(log_ratio=[0.0, 0.0], advantage=[1.0, 1.0])
    with pytest.raises((ValueError, TypeError)):
        dataclasses.replace(tokens, advantage=torch.zeros(3))


def test_selected_responses_are_numbered_from_zero():
    tokens, _ = tokens_of(log_ratio=[0.0] * 5, advantage=[1.0] * 5, sequence=[0, 1, 1, 2, 3])
    kept = tokens.select(tokens.sequence >= 2)
    assert kept.sequence.tolist() == [0, 1]
    assert len(tokens.select(tokens.sequence > 9)) == 0
    assert isinstance(kept, TokenBatch)
