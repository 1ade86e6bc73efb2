"""KL penalties and the entropy bonus, alone and inside the loss."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.golden.tables import Given, recipe
from tether.core.aggregation import Denominator, TokenMean
from tether.core.examples import tokens_of
from tether.core.kl import K1, K2, K3, LOW_VAR_LIMIT, LowVarKL
from tether.core.loss import measure_scope, policy_loss
from tether.core.rule import PolicyTokens
from tether.registry import KL_PENALTIES
from tether.rules.ppo import PPO

everyone = pytest.mark.parametrize("cls", [cls for _, cls in KL_PENALTIES.items()], ids=KL_PENALTIES.names())


def with_reference(delta: list[float], advantage: float = 0.0):
    """On-policy tokens whose log-probability stands ``delta`` above the reference's."""
    tokens, logp = tokens_of(log_ratio=[0.0] * len(delta), advantage=[advantage] * len(delta))
    return dataclasses.replace(tokens, logp_reference=-torch.tensor(delta)), logp


def terms_of(tokens, logp, algorithm, entropy=None):
    stats = measure_scope(algorithm, [(logp, tokens)])
    n = int(tokens.trainable.sum())
    terms = policy_loss(PolicyTokens(logp, entropy), tokens, algorithm, stats, Denominator(n, n))
    terms.loss.backward()
    return terms


@everyone
@pytest.mark.parametrize("delta", [-1e3, -30.0, 30.0, 1e3])
def test_extreme_distances_stay_finite_and_beyond_the_guard_have_no_gradient(cls, delta):
    tokens, logp = with_reference([delta])
    terms = terms_of(tokens, logp, recipe(PPO(), kl=cls(coefficient=0.1)))
    assert terms.loss.isfinite()
    assert terms.kl.isfinite()
    assert logp.grad.tolist() == [0.0]


@everyone
def test_no_distance_gives_no_penalty(cls):
    assert cls(coefficient=0.1)(torch.zeros(3)).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("cls", [K2, K3, LowVarKL])
def test_k2_and_k3_are_never_negative(cls):
    assert (cls(coefficient=0.1)(torch.linspace(-20.0, 20.0, 4001)) >= 0).all()


def test_k3_keeps_small_distances_that_a_naive_sum_loses():
    delta = torch.tensor([1e-3])
    exact = 0.5e-6 - 1e-9 / 6
    assert K3(coefficient=0.1)(delta).item() == pytest.approx(exact, rel=2e-4)


def test_low_var_kl_is_held_and_has_no_gradient_beyond():
    delta = torch.tensor([-5.0, -1.0], requires_grad=True)
    value = LowVarKL(coefficient=0.1)(delta)
    value.sum().backward()
    assert value[0] == LOW_VAR_LIMIT
    assert delta.grad[0] == 0.0
    assert delta.grad[1] == pytest.approx(1 - torch.e, rel=1e-6)


@everyone
@pytest.mark.parametrize("coefficient", [0.0, -1.0, float("nan")])
def test_a_coefficient_that_is_no_penalty_is_refused(cls, coefficient):
    with pytest.raises(ValueError, match=r"coefficient of .* must be > 0; got .*leave .* out for none"):
        cls(coefficient=coefficient)


def test_the_loss_adds_the_aggregated_penalty_times_its_coefficient():
    tokens, logp = with_reference([0.5, -0.2, 0.1, 0.0], advantage=1.0)
    terms = terms_of(tokens, logp, recipe(PPO(), kl=K2(coefficient=0.3), aggregation=TokenMean()))
    kl = 0.5 * torch.tensor([0.25, 0.04, 0.01, 0.0]).mean()
    torch.testing.assert_close(terms.kl, 4 * kl)  # a sum over tokens, whatever the aggregation
    torch.testing.assert_close(terms.surrogate, torch.tensor(-1.0))
    torch.testing.assert_close(terms.loss.detach(), terms.surrogate + 0.3 * kl)
    torch.testing.assert_close(logp.grad, (-1.0 + 0.3 * torch.tensor([0.5, -0.2, 0.1, 0.0])) / 4)


def test_the_penalty_ignores_the_masks_of_corrections():
    """A token that a rule cuts or a mask removes is still held near the reference."""
    tokens, logp = with_reference([0.5, 0.5], advantage=1.0)
    mask = Given((1.0, 0.0), is_mask=True)
    terms_of(tokens, logp, recipe(PPO(), kl=K1(coefficient=0.3), corrections=(mask,)))
    torch.testing.assert_close(logp.grad, torch.tensor([-1.0 + 0.3, 0.3]))


def test_entropy_is_a_bonus():
    tokens, logp = tokens_of(log_ratio=[0.0, 0.0], advantage=[0.0, 0.0])
    entropy = torch.tensor([1.0, 3.0], requires_grad=True)
    terms = terms_of(tokens, logp, recipe(PPO(), entropy=0.01, aggregation=TokenMean()), entropy)
    assert terms.loss.item() == pytest.approx(-0.01 * 2.0)
    torch.testing.assert_close(entropy.grad, torch.full((2,), -0.005))
