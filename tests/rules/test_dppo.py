"""DPPO: which tokens its mask drops, whatever the divergence and the form."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tests.laws.batches import Drawn, algorithm_of, batches, terms_and_gradient
from tether.core.aggregation import Denominator
from tether.core.loss import LossTerms, measure_scope, policy_loss
from tether.core.rule import PolicyTokens
from tether.core.tokens import TokenBatch
from tether.errors import ConfigError
from tether.rules.dppo import DPPO
from tether.rules.ppo import PPO

few = settings(max_examples=25)
DIVERGENCES = ("tv", "kl", "top-k-tv", "top-k-kl")
FORMS = ("capped", "differentiable", "clip")
OPEN = PPO(epsilon_low=1.0, epsilon_high=1e9)


def token(mu: list[float], pi: list[float], advantage: float, sampled: int = 0) -> tuple[TokenBatch, PolicyTokens]:
    """One token of a distribution whose first two ids are the top 2, with both policies' numbers of them."""
    before, now = torch.tensor([mu]).log(), torch.tensor([pi]).log()
    chosen = before[:, sampled]
    tokens = TokenBatch(
        logp_behavior=chosen,
        logp_proximal=chosen,
        advantage=torch.tensor([advantage]),
        trainable=torch.tensor([True]),
        sequence=torch.tensor([0]),
        group=torch.tensor([0]),
        staleness=torch.tensor([0]),
        top_k_behavior=top_two(before, sampled),
    )
    return tokens, PolicyTokens(now[:, sampled].requires_grad_(), top_k=top_two(now, sampled).requires_grad_())


def top_two(logp: Tensor, sampled: int) -> Tensor:
    top = logp[:, :2].clone()
    top[:, [i for i in range(2) if i == sampled]] = -math.inf
    return top


def terms_of(rule: DPPO, tokens: TokenBatch, policy: PolicyTokens) -> LossTerms:
    algorithm = algorithm_of(rule)
    stats = measure_scope(algorithm, [(policy.logp, tokens)])
    return policy_loss(policy, tokens, algorithm, stats, Denominator(1, 1))


def with_top_k(drawn: Drawn) -> tuple[TokenBatch, PolicyTokens]:
    """The drawn tokens with two others that share what the sampled one leaves; of every other token, only one."""
    tokens, logp = drawn
    held = logp.clamp(max=-1e-3)
    own = torch.arange(len(logp)) % 2 == 0

    def others(x: Tensor) -> Tensor:
        left = (-x.clamp(max=-1e-3).expm1()).log()
        return torch.stack([left + math.log(0.5), torch.where(own, -math.inf, left + math.log(0.3))], dim=-1)

    behavior = tokens.logp_behavior
    tokens = dataclasses.replace(tokens, logp_proximal=behavior, top_k_behavior=others(behavior))
    return tokens, PolicyTokens(held.clone().requires_grad_(), top_k=others(held))


@given(drawn=batches(spread=0.5, advantages=(-1.0, 1.0)))
@few
def test_total_variation_keeps_exactly_the_ratio_window_of_each_outward_token(drawn):
    tokens, logp = drawn
    terms, _ = terms_and_gradient(drawn, algorithm_of(DPPO(delta_low=0.05, delta_high=0.2)))
    mu = tokens.logp_behavior.double().exp()
    width = (logp.double().exp() / mu - 1).abs()
    limit = torch.where(tokens.advantage > 0, 0.2, 0.05) / mu
    plain = (width / limit - 1).abs() > 1e-5  # float32 log-probabilities do not tell on the very edge
    wanted = tokens.trainable & (~terms.outward | (width <= limit))
    inside = logp < 0  # a sampled policy's probabilities end at 1
    assert terms.active[plain & inside].equal(wanted[plain & inside])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("divergence", DIVERGENCES)
@given(drawn=batches(advantages=(-1.5, -1.0, 0.5, 2.0)))
@few
def test_pull_back_is_never_dropped(divergence, form, drawn):
    tokens, policy = with_top_k(drawn)
    rule = DPPO(divergence=divergence, form=form, delta_low=1e-6, delta_high=1e-6, cap=1e9)
    terms = terms_of(rule, tokens, policy)
    terms.loss.backward()
    _, wanted = terms_and_gradient((tokens, policy.logp), algorithm_of(OPEN))
    inward = tokens.trainable & ~terms.outward
    assert terms.active[inward].all()
    assert policy.logp.grad[inward].equal(wanted[inward])
    assert terms.active.equal(policy.logp.grad != 0)


@pytest.mark.parametrize("divergence", DIVERGENCES)
@given(drawn=batches(advantages=(-1.0, 1.0)))
@few
def test_forms_share_their_mask_and_up_to_the_cap_their_gradient(divergence, drawn):
    tokens, policy = with_top_k(drawn)
    answers = {}
    for form in FORMS:
        leaf = policy.logp.detach().clone().requires_grad_()
        terms = terms_of(DPPO(divergence=divergence, form=form), tokens, policy._replace(logp=leaf))
        terms.loss.backward()
        answers[form] = terms.active, leaf.grad
    (capped, gradient), (active, whole), (both, cut) = (answers[form] for form in FORMS)
    ratio = (policy.logp.detach() - tokens.logp_proximal).exp()
    assert capped.equal(active)
    assert gradient[ratio < 20].equal(whole[ratio < 20])
    ppo, wanted = terms_and_gradient((tokens, policy.logp), algorithm_of(PPO()))
    assert both.equal(active & ppo.active), "the clip form keeps what both keep"
    assert cut.equal(torch.where(active, wanted, 0.0))


def test_the_cap_bounds_the_weight_of_form_capped_alone():
    for form, slope in (("capped", -20.0), ("differentiable", -100.0)):
        tokens, policy = token([1e-4, 0.5], [1e-2, 0.5], advantage=1.0)
        terms_of(DPPO(form=form), tokens, policy).loss.backward()
        assert policy.logp.grad.item() == pytest.approx(slope, rel=1e-5)


def test_top_k_sees_a_move_that_the_sampled_token_does_not_show():
    """Golden case K1: the total variation is 0.1 in the binary form and 0.15 in the top-2 form; 0.02 and 0.07 in KL."""
    mu, pi = [0.6, 0.3, 0.06, 0.04], [0.5, 0.25, 0.2, 0.05]
    for name, delta in (("tv", 0.12), ("kl", 0.05)):
        for divergence, is_kept in ((name, True), (f"top-k-{name}", False)):
            rule = DPPO(divergence=divergence, delta_low=delta)
            assert terms_of(rule, *token(mu, pi, advantage=-1.0)).active.item() is is_kept
            assert terms_of(rule, *token(mu, pi, advantage=1.0)).active.item() is True, "it fell: pull-back for A > 0"


def test_top_k_of_a_sampled_token_outside_the_top_counts_all_of_them():
    mu, pi = [0.6, 0.3, 0.06, 0.04], [0.5, 0.25, 0.2, 0.05]
    for delta, is_kept in ((0.151, True), (0.149, False)):
        rule = DPPO(divergence="top-k-tv", delta_high=delta)
        assert terms_of(rule, *token(mu, pi, advantage=1.0, sampled=2)).active.item() is is_kept


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_equal_policies_drop_nothing_however_small_delta(divergence):
    mu = [0.6, 0.3, 0.06, 0.04]
    rule = DPPO(divergence=divergence, delta_low=1e-9, delta_high=1e-9)
    tokens, policy = token(mu, mu, advantage=-1.0)
    terms = terms_of(rule, tokens, policy)
    terms.loss.backward()
    assert terms.active.item() is True
    assert policy.logp.grad.item() == 1.0
    assert policy.top_k.grad is None, "the divergence has no gradient"


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("divergence", ["top-k-tv", "top-k-kl"])
def test_what_untrainable_tokens_hold_does_not_matter(divergence, poison):
    tokens, policy = token([0.6, 0.3, 0.1], [0.5, 0.3, 0.2], advantage=1.0)
    spoiled = torch.full((1, 2), poison)
    tokens = dataclasses.replace(tokens, trainable=torch.tensor([False]), top_k_behavior=spoiled)
    terms = terms_of(DPPO(divergence=divergence), tokens, policy._replace(top_k=spoiled))
    terms.loss.backward()
    assert terms.loss == 0.0
    assert policy.logp.grad.item() == 0.0


def test_each_divergence_has_its_usual_delta():
    for divergence, pi, is_kept in (
        ("tv", 0.64, True),  # total variation 0.14, KL 0.041
        ("tv", 0.66, False),
        ("kl", 0.64, True),
        ("kl", 0.66, False),  # 0.052
        ("kl", 0.654, True),  # total variation 0.154 and KL 0.0497: only the second is below its threshold
        ("tv", 0.654, False),
    ):
        tokens, policy = token([0.5, 0.3], [pi, 0.3], advantage=1.0)
        assert terms_of(DPPO(divergence=divergence), tokens, policy).active.item() is is_kept, (divergence, pi)


def test_only_the_top_k_forms_ask_for_top_k():
    assert DPPO().traits.inputs == DPPO(divergence="kl").traits.inputs == ()
    for divergence in ("top-k-tv", "top-k-kl"):
        assert DPPO(divergence=divergence).traits.inputs == ("top_k_behavior", "top_k")


def test_it_works_token_by_token_alone():
    with pytest.raises(ConfigError, match="rule 'dppo' is defined at level 'token'"):
        algorithm_of(DPPO(), level="sequence")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta_low": 0.0}, r"delta_low of dppo must lie in \(0, 1e\+09\] \(0.15 is usual\); got 0.0"),
        ({"delta_high": math.nan, "divergence": "kl"}, r"delta_high of dppo must .*\(0.05 is usual\); got nan"),
        ({"cap": 0.5}, r"cap of dppo must lie in \[1, .*\(20 is usual\); got 0.5"),
        ({"epsilon_low": 2.0}, r"epsilon_low of dppo must lie in \[0, 1\]; got 2.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DPPO(**options)
