"""Divergences of two policies at one token: laws, floors and the finest partition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.core.divergences import bernoulli_kl, binary_tv, kullback_leibler, partition, total_variation

CERTAIN_OR_NOT = torch.tensor([0.0, -1e-9, -1e-7, -0.5, -30.0, -1000.0, -math.inf])


@st.composite
def pairs(draw: st.DrawFn):
    """Log-probabilities of two distributions over 3 to 12 ids, rows ``[1, V]``, and the number of named others."""
    size = draw(st.integers(3, 12))
    wide = draw(st.sampled_from([0.1, 1.0, 4.0]))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    logits = wide * torch.randn(2, size, generator=noise, dtype=torch.float64)
    mu, pi = logits.log_softmax(-1).split(1)
    return mu, pi, draw(st.integers(0, size - 2))


@pytest.mark.parametrize(("binary", "whole"), [(binary_tv, total_variation), (bernoulli_kl, kullback_leibler)])
@given(drawn=pairs())
def test_a_finer_partition_never_shows_less(binary, whole, drawn):
    mu, pi, k = drawn
    coarse = binary(mu[:, 0], pi[:, 0])
    top_k = whole(*(partition(x[:, 0], x[:, 1 : k + 1]) for x in (mu, pi)))
    full = whole(mu.exp(), pi.exp())
    slack = 1e-6  # the floors: 1e-8 and 1e-12 where nothing is left
    assert coarse <= top_k + slack
    assert top_k <= full + slack
    everyone = whole(*(partition(x[:, 0], x[:, 1:]) for x in (mu, pi)))
    torch.testing.assert_close(everyone, full, rtol=1e-6, atol=1e-8)
    nobody = whole(*(partition(x[:, 0], x[:, :0]) for x in (mu, pi)))
    torch.testing.assert_close(nobody, coarse, rtol=1e-6, atol=1e-6)


@given(drawn=pairs())
def test_bernoulli_kl_is_the_official_expression(drawn):
    mu, pi, _ = (x[:, 0] if isinstance(x, torch.Tensor) else x for x in drawn)
    p, q = mu.exp(), pi.exp()
    official = p * (p / q).log() + (1 - p) * ((1 - p + 1e-8) / (1 - q + 1e-8)).log()
    torch.testing.assert_close(bernoulli_kl(mu, pi), official, rtol=1e-5, atol=1e-7)


def test_every_pair_of_extremes_is_finite_and_not_negative():
    p, q = (x.flatten() for x in torch.meshgrid(CERTAIN_OR_NOT, CERTAIN_OR_NOT, indexing="ij"))
    for divergence in (binary_tv, bernoulli_kl):
        got = divergence(p, q)
        assert got.isfinite().all()
        assert (got >= 0).all()
        assert not got[p == q].any()
        assert got.dtype == torch.float64


def test_an_id_that_is_the_sampled_one_counts_once_and_gives_no_nan():
    mu, pi = torch.tensor([[0.6, 0.3]]).log(), torch.tensor([[0.5, 0.25]]).log()
    others = [torch.cat([torch.full((1, 1), -math.inf), x[:, 1:]], dim=-1) for x in (mu, pi)]
    before, now = partition(mu[:, 0], others[0]), partition(pi[:, 0], others[1])
    torch.testing.assert_close(before.sum(-1), torch.ones(1, dtype=torch.float64))
    assert total_variation(before, now).item() == pytest.approx(0.15)
    assert kullback_leibler(before, now).item() == pytest.approx(0.0724603, rel=1e-5)
    for same in (total_variation, kullback_leibler):
        assert same(before, before).item() == 0.0


def test_an_id_that_one_policy_gives_no_probability_is_finite():
    certain, even = (partition(torch.tensor([p]).log(), torch.tensor([[q]]).log()) for p, q in ((1.0, 0.0), (0.5, 0.5)))
    assert kullback_leibler(even, certain).isfinite()
    assert kullback_leibler(certain, even).item() == pytest.approx(math.log(2), rel=1e-6)


def test_divergences_carry_no_gradient():
    logp = torch.tensor([-1.0], requires_grad=True)
    others = torch.tensor([[-2.0]], requires_grad=True)
    reference = torch.tensor([-0.5])
    for got in (binary_tv(logp, reference), bernoulli_kl(logp, reference), partition(logp, others)):
        assert not got.requires_grad
