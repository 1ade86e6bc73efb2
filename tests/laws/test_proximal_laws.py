"""Laws of every registered proximal policy, and of options of corrections that are not their defaults."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.core.loss import measure_scope
from tether.core.ratio import edge_log_ratio
from tether.core.tokens import per_sequence_max, per_sequence_sum
from tether.corrections.decoupled import Decoupled
from tether.corrections.icepop import IcePop
from tether.corrections.kpop import KPop
from tether.corrections.opsm import OPSM
from tether.corrections.seqclip import SeqClip
from tether.corrections.tis import TIS
from tether.corrections.trm import TRM
from tether.proximal.a3po import A3POProximal
from tether.proximal.old import OldProximal
from tether.registry import PROXIMALS
from tether.rules.ppo import PPO

from .batches import algorithm_of, batches, built, counts, split_by_response, terms_and_gradient, with_proximal
from .test_limits import OPEN_RULES
from .test_policy_laws import assert_close, poisoned

few = settings(max_examples=15)
PROXIMAL = [*[built(PROXIMALS, name) for name in PROXIMALS.names()], A3POProximal(form="linear")]
everywhere = pytest.mark.parametrize("proximal", PROXIMAL, ids=repr)


@everywhere
@given(drawn=batches(spread=0.0))
@few
def test_where_all_policies_agree_the_proximal_is_that_policy(proximal, drawn):
    tokens, logp = drawn
    assert_close(proximal(tokens, logp), logp)


@everywhere
@given(drawn=batches(), poison=st.sampled_from([float("nan"), float("inf"), -1e30]))
@few
def test_a_proximal_is_detached_and_by_token(proximal, drawn, poison):
    tokens, logp = drawn
    clean = proximal(tokens, logp.clone().requires_grad_())
    assert not clean.requires_grad
    dirty = proximal(*poisoned(drawn, poison))
    assert clean[tokens.trainable].equal(dirty[tokens.trainable])


@everywhere
@given(drawn=batches(spread=0.5))
@few
def test_an_open_decoupled_weight_completes_the_ratio_to_any_proximal(proximal, drawn):
    tokens, logp = drawn
    if proximal.stands_for == "behavior":
        pytest.skip("complete without a weight")
    algorithm = algorithm_of(OPEN_RULES["ppo"], corrections=(Decoupled(cap=1e18),), proximal=proximal)
    _, gradient = terms_and_gradient(drawn, algorithm)
    quiet = tokens.neutralized()
    ratio = edge_log_ratio("total", torch.where(tokens.trainable, logp, 0.0), quiet, "token").exp()
    assert_close(gradient, -quiet.advantage * ratio)


@given(drawn=batches())
@few
def test_a_clip_against_a3po_is_a_wider_clip_against_the_behavior_policy(drawn):
    """``log(pi / proximal) = (1 - alpha) log(pi / behavior)``, ``1 - alpha = 1 / N`` from staleness 1 on."""
    tokens, logp = drawn
    near = A3POProximal()(tokens, logp)
    share = 1.0 / tokens.staleness.clamp(min=1)
    assert_close(logp - near, share * (logp - tokens.logp_behavior))


@given(drawn=batches())
@few
def test_the_largest_of_a_response_is_over_its_trainable_tokens(drawn):
    tokens, logp = drawn
    x = logp.abs()
    most = per_sequence_max(torch.where(tokens.trainable, x, 1e9), tokens)
    for i, b in enumerate(tokens.sequence.tolist()):
        own = x[(tokens.sequence == b) & tokens.trainable]
        assert most[i] == (own.max() if len(own) else 0.0)
    ones = tokens.trainable.float()
    assert per_sequence_max(ones, tokens).equal((per_sequence_sum(ones, tokens) > 0).float())


VARIANTS = {
    "tis-token": (TIS(level="token"),),
    "tis-product": (TIS(level="product"),),
    "icepop-engine": (IcePop(edge="engine"),),
    "icepop-mask-total": (TIS(), IcePop(form="mask", edge="total")),
    "kpop-total": (TIS(), KPop(edge="total", phi=0.1)),
    "kpop-engine": (TIS(), KPop(edge="engine", phi=0.1)),
    "seqclip-open-weight": (TIS(), SeqClip(closed=False, edge="weight", alpha=0.8, beta=1.2)),
    "seqclip-clipped": (TIS(), SeqClip(edge="clipped", alpha=0.8, beta=1.2)),
    "opsm-update": (TIS(), OPSM(edge="update")),
    "opsm-clipped": (TIS(), OPSM(edge="clipped")),
    "opsm-weight": (TIS(), OPSM(edge="weight")),
    "trm-mirrored": (TIS(), TRM(direction="current-behavior")),
    "decoupled-sequence": (Decoupled(level="sequence", cap=1.1),),
    "decoupled-product": (Decoupled(level="product", cap=1.1, w_max=1.05),),
}


@pytest.mark.parametrize("level", ["token", "sequence", "product"])
@pytest.mark.parametrize("corrections", VARIANTS.values(), ids=VARIANTS.keys())
@given(drawn=batches(), cut=st.integers(0, 12), far=st.sampled_from([1.0, 300.0]))
@settings(max_examples=10)
def test_options_of_corrections_keep_the_laws_of_split_mask_and_size(corrections, level, drawn, cut, far):
    """Micro-batches add up, untrainable tokens never matter, weights stay finite where ratios leave the guard."""
    tokens, logp = drawn
    drawn = tokens, tokens.logp_behavior + far * (logp - tokens.logp_behavior)
    algorithm = algorithm_of(PPO(), level=level, corrections=corrections, proximal=OldProximal())
    whole, gradient = terms_and_gradient(drawn, algorithm)
    assert gradient.isfinite().all()
    for name, weight in whole.weights.items():
        assert weight.isfinite().all(), name
        assert (weight >= 0).all(), name
    dirty, spoiled = terms_and_gradient(poisoned(drawn, float("nan")), algorithm)
    assert dirty.loss.equal(whole.loss)
    assert spoiled.equal(gradient)
    parts = split_by_response(drawn, cut)
    stats = measure_scope(algorithm, [(lp, with_proximal(t, algorithm)) for t, lp in parts])
    denominator = counts([t for t, _ in parts])
    shares = [terms_and_gradient(part, algorithm, stats, denominator)[1] for part in parts]
    assert_close(torch.cat(shares), gradient)


@given(drawn=batches(advantages=(-1.0, 1.0)))
@few
def test_opsm_never_drops_a_good_response(drawn):
    tokens, logp = drawn
    weight = terms_and_gradient(drawn, algorithm_of(PPO(), corrections=(OPSM(),)))[0].weights["opsm"]
    dropped = tokens.trainable & (weight == 0)
    assert (tokens.advantage[dropped] < 0).all()
    less_likely = (
        edge_log_ratio("total", torch.where(tokens.trainable, logp, 0.0), tokens.neutralized(), "sequence") < 0
    )
    assert less_likely[dropped].all()


@given(drawn=batches(spread=0.5), cap=st.sampled_from([0.5, 1.0, 3.0]))
@few
def test_the_cap_of_decoupled_bounds_the_coefficient_of_every_token(drawn, cap):
    tokens, _ = drawn
    algorithm = algorithm_of(OPEN_RULES["ppo"], corrections=(Decoupled(cap=cap),))
    _, gradient = terms_and_gradient(drawn, algorithm)
    assert (gradient.abs() <= cap * tokens.advantage.abs() * (1 + 1e-5)).all()
    with_more = dataclasses.replace(algorithm, corrections=(Decoupled(cap=2 * cap),))
    assert (terms_and_gradient(drawn, with_more)[1].abs() >= gradient.abs() * (1 - 1e-5)).all()
