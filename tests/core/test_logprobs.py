"""Log-prob and entropy in chunks equal the naive form, and all logits are never held at once."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tether.core import logprobs
from tether.core.logprobs import sampled_logp

T, H, V = 23, 8, 31


@pytest.fixture
def case():
    noise = torch.Generator().manual_seed(0)
    hidden = torch.randn(T, H, generator=noise)
    head = torch.randn(V, H, generator=noise)
    ids = torch.randint(V, (T,), generator=noise)
    return hidden, head, ids


def naive(hidden, head, ids, temperature):
    logp = ((hidden @ head.T).float() / temperature).log_softmax(-1)
    return logp.gather(-1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


def leaves(*tensors):
    return [x.detach().clone().requires_grad_() for x in tensors]


@pytest.mark.parametrize("chunk", [1, 3 * V, 10 * V + 5, T * V, 1 << 24])
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.5])
@pytest.mark.parametrize("entropy", ["none", "detached", "differentiable"])
def test_values_and_gradients_are_the_naive_forms(case, monkeypatch, chunk, temperature, entropy):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    hidden, weights, ids = case
    pull = torch.linspace(-1.0, 1.0, T)
    (h, w), (h_naive, w_naive) = leaves(hidden, weights), leaves(hidden, weights)
    logp, got = sampled_logp(h, ids, lambda x: x @ w.T, temperature=temperature, vocabulary=V, entropy=entropy)
    logp_naive, wanted = naive(h_naive, w_naive, ids, temperature)
    torch.testing.assert_close(logp, logp_naive)
    loss, loss_naive = (pull * logp).sum(), (pull * logp_naive).sum()
    if entropy == "none":
        assert got is None
    else:
        torch.testing.assert_close(got, wanted)
        assert got.requires_grad == (entropy == "differentiable")
    if entropy == "differentiable":
        loss, loss_naive = loss - 0.3 * got.sum(), loss_naive - 0.3 * wanted.sum()
    loss.backward()
    loss_naive.backward()
    torch.testing.assert_close(h.grad, h_naive.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(w.grad, w_naive.grad, rtol=1e-4, atol=1e-5)


def test_half_precision_hidden_states_give_float32_log_probs(case, monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 4 * V)
    hidden, weights, ids = case
    half, weights = hidden.bfloat16(), weights.bfloat16()
    logp, entropy = sampled_logp(half, ids, lambda x: x @ weights.T, temperature=0.9, vocabulary=V)
    wanted, wanted_entropy = naive(half, weights, ids, 0.9)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp, wanted)
    torch.testing.assert_close(entropy, wanted_entropy)


class Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that an operation makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, torch.Tensor):
                self.numel = max(self.numel, x.numel())
        return out


@pytest.mark.parametrize("entropy", ["none", "detached", "differentiable"])
@pytest.mark.parametrize("training", [True, False])
def test_all_logits_are_never_held_at_once(monkeypatch, entropy, training):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 5 * 1000)
    hidden, weights = leaves(torch.randn(203, 4), torch.randn(1000, 4))
    seen, kept = [], []

    def head(x):
        seen.append(len(x))
        return x @ weights.T

    def pack(x):
        kept.append(x.numel())
        return x

    ids = torch.zeros(203, dtype=torch.int64)
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x)
    with Largest() as largest, hooks, torch.set_grad_enabled(training):
        logp, _ = sampled_logp(hidden, ids, head, temperature=1.0, vocabulary=1000, entropy=entropy)
        assert max(seen) == 5
        assert sum(seen) == 203
        assert max(kept, default=0) <= weights.numel(), "the forward pass keeps no logits for backward"
        if training:
            logp.sum().backward()
            assert sum(seen) == 2 * 203, "logits are computed again in backward"
    assert largest.numel <= 5 * 1000


def test_no_token_gives_no_log_prob():
    empty = torch.zeros(0, 4, requires_grad=True)
    logp, entropy = sampled_logp(empty, torch.zeros(0, dtype=torch.int64), lambda x: x, temperature=1.0, vocabulary=4)
    assert logp.shape == entropy.shape == (0,)
    logp.sum().backward()


def test_a_vocabulary_wider_than_a_chunk_goes_token_by_token(monkeypatch):
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", 3)
    sizes = []

    def head(x):
        sizes.append(len(x))
        return x

    with torch.no_grad():
        sampled_logp(torch.randn(4, 9), torch.zeros(4, dtype=torch.int64), head, temperature=1.0, vocabulary=9)
    assert sizes == [1, 1, 1, 1]


def test_temperature_divides_logits_not_log_probs():
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    cold, _ = sampled_logp(logits, torch.tensor([0]), lambda x: x, temperature=0.5, vocabulary=3)
    plain, _ = sampled_logp(logits, torch.tensor([0]), lambda x: x, temperature=1.0, vocabulary=3)
    torch.testing.assert_close(cold, (2 * logits).log_softmax(-1)[:, 0])
    assert abs(float(cold - plain / 0.5)) > 0.1
