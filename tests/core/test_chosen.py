"""The gradient that is written out is the one that autograd finds."""

from __future__ import annotations

import pytest
import torch

from tether.core import chosen
from tether.core.chosen import chosen_logp

N, V = 7, 31


def naive(logits, ids, temperature):
    logp = (logits.float() / temperature).log_softmax(-1)
    return logp.gather(-1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.fixture
def case():
    noise = torch.Generator().manual_seed(0)
    return 3 * torch.randn(N, V, generator=noise), torch.randint(V, (N,), generator=noise)


@pytest.mark.parametrize("elements", [1, 2 * V, 1 << 19])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
@pytest.mark.parametrize("on", [(1.0, 0.0), (0.0, 1.0), (1.0, -0.3)], ids=["logp", "entropy", "both"])
def test_values_and_gradients_are_autograds_whatever_the_cache_holds(case, monkeypatch, elements, temperature, on):
    monkeypatch.setattr(chosen, "CACHED_ELEMENTS", elements)
    logits, ids = case
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    pull = torch.linspace(-1.0, 1.0, N)
    got, wanted = chosen_logp(ours, ids, temperature, entropy=True), naive(theirs, ids, temperature)
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b)
    for logp, h in (got, wanted):
        loss = [weight * (pull * x).sum() for weight, x in zip(on, (logp, h), strict=True) if weight]
        torch.stack(loss).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


def test_an_impossible_token_takes_no_part(case):
    logits, ids = case
    logits[:, 5], ids = -torch.inf, ids.masked_fill(ids == 5, 6)
    logits.requires_grad_()
    logp, h = chosen_logp(logits, ids, 1.0, entropy=True)
    (logp.sum() + h.sum()).backward()
    rest = torch.cat([logits[:, :5], logits[:, 6:]], dim=1).detach()
    torch.testing.assert_close(h.detach(), naive(rest, torch.zeros_like(ids), 1.0)[1])
    assert torch.equal(logits.grad[:, 5], torch.zeros(N))
    assert bool(logits.grad.isfinite().all())


def test_a_logit_that_is_not_a_number_is_seen_in_its_own_row_alone(case):
    logits, ids = case
    logits[2, 3] = torch.nan
    logp, h = chosen_logp(logits, ids, 1.0, entropy=True)
    assert logp.isnan().nonzero().flatten().tolist() == h.isnan().nonzero().flatten().tolist() == [2]


def test_backward_can_run_twice(case):
    logits, ids = case
    logits.requires_grad_()
    logp, _ = chosen_logp(logits, ids, 1.0, entropy=False)
    (once,) = torch.autograd.grad(logp.sum(), logits, retain_graph=True)
    (twice,) = torch.autograd.grad(logp.sum(), logits)
    assert torch.equal(once, twice)
