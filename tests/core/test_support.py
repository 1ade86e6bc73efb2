"""Log-probs over kept ids, against a softmax whose other logits are minus infinity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tether.core import logprobs
from tether.core.logprobs import sampled_logp
from tether.core.support import KeptIds, lost_mass, supported_logp
from tether.core.truncation import Limits, kept_of
from tether.records import Truncation

T, H, V = 23, 8, 31


def kept_from(mask: Tensor, *, is_entropy_kept: bool = False) -> KeptIds:
    _, ids = mask.nonzero().unbind(-1)
    starts = np.concatenate([np.zeros(1, np.int64), mask.sum(-1).cumsum(0).numpy()])
    return KeptIds.of(ids.int().numpy(), starts, is_entropy_kept=is_entropy_kept)


def a_case(seed: int = 0, unknown: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states, a head, sampled ids, and sets of which every one holds its id."""
    noise = torch.Generator().manual_seed(seed)
    hidden, head = torch.randn(T, H, generator=noise), torch.randn(V, H, generator=noise)
    ids = torch.randint(V, (T,), generator=noise)
    mask = torch.rand(T, V, generator=noise) < torch.rand(T, 1, generator=noise)
    mask[torch.arange(T), ids] = True
    mask[3], mask[3, ids[3]] = False, True
    if unknown:
        mask[::5] = False
    return hidden, head, ids, mask


def naive(logits: Tensor, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob over the sets, entropy over all, entropy over the sets; an empty set is all."""
    whole = logits.log_softmax(-1)
    mask = mask | ~mask.any(-1, keepdim=True)
    logp = logits.masked_fill(~mask, -math.inf).log_softmax(-1)
    inside = logp.masked_fill(~mask, 0.0)
    return logp.gather(-1, ids[:, None])[:, 0], -(whole.exp() * whole).sum(-1), -(logp.exp() * inside).sum(-1)


@pytest.mark.parametrize("chunk", [1, 3 * V, T * V, 1 << 24])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("entropy", ["none", "detached", "differentiable"])
@pytest.mark.parametrize("of_kept", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
def test_values_and_gradients_are_those_of_masked_logits(
    monkeypatch: pytest.MonkeyPatch, chunk: int, temperature: float, entropy: Any, of_kept: bool, unknown: bool
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    hidden, weights, ids, mask = a_case(unknown=unknown)
    h, w, h_naive, w_naive = (x.clone().requires_grad_() for x in (hidden, weights, hidden, weights))
    logp, got = supported_logp(
        h,
        (ids, kept_from(mask, is_entropy_kept=of_kept)),
        lambda x: x @ w.T,
        temperature=temperature,
        vocabulary=V,
        entropy=entropy,
    )
    wanted, full, inside = naive(h_naive @ w_naive.T / temperature, ids, mask)
    torch.testing.assert_close(logp, wanted)
    pull = torch.linspace(-1.0, 1.0, T)
    loss, loss_naive = (pull * logp).sum(), (pull * wanted).sum()
    if entropy == "none":
        assert got is None
    else:
        torch.testing.assert_close(got, inside if of_kept else full, rtol=1e-5, atol=1e-6)
    if entropy == "differentiable":
        loss, loss_naive = loss - 0.3 * got.sum(), loss_naive - 0.3 * (inside if of_kept else full).sum()
    loss.backward()
    loss_naive.backward()
    torch.testing.assert_close(h.grad, h_naive.grad, rtol=1e-4, atol=2e-6)
    torch.testing.assert_close(w.grad, w_naive.grad, rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 2**20), scale=st.floats(0.1, 60.0))
@settings(max_examples=40, deadline=None)
def test_logits_outside_of_the_set_get_no_gradient_at_all(seed: int, scale: float) -> None:
    hidden, head, ids, mask = a_case(seed)
    logits = (hidden @ head.T * scale).requires_grad_()
    logp, h = supported_logp(
        logits,
        (ids, kept_from(mask, is_entropy_kept=True)),
        lambda x: x,
        temperature=1.0,
        vocabulary=V,
        entropy="differentiable",
    )
    assert h is not None
    (logp.sum() + h.sum()).backward()
    assert logits.grad is not None
    assert (logits.grad[~mask] == 0).all()
    assert torch.isfinite(logits.grad).all()


def test_a_token_that_had_no_choice_has_log_prob_zero_and_no_gradient() -> None:
    hidden, head, ids, mask = a_case()
    logits = (hidden @ head.T * 30).requires_grad_()
    logp, _ = supported_logp(logits, (ids, kept_from(mask)), lambda x: x, temperature=0.3, vocabulary=V)
    assert logp[3] == 0
    (gradient,) = torch.autograd.grad(logp[3], logits)
    assert (gradient == 0).all()


@given(seed=st.integers(0, 2**20), temperature=st.floats(0.2, 3.0))
@settings(max_examples=40, deadline=None)
def test_sets_of_all_ids_are_no_replay(seed: int, temperature: float) -> None:
    hidden, head, ids, mask = a_case(seed)
    both = []
    for kept in (kept_from(torch.ones_like(mask)), None):
        logits = (hidden @ head.T).requires_grad_()
        how: dict[str, Any] = {"temperature": temperature, "vocabulary": V}
        logp, h = (
            sampled_logp(logits, ids, lambda x: x, **how)
            if kept is None
            else supported_logp(logits, (ids, kept), lambda x: x, **how)
        )
        (gradient,) = torch.autograd.grad(logp.sum(), logits)
        both.append((logp, h, gradient))
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)  # logits of 40 have steps of 4e-6


def test_sets_that_are_not_known_are_no_replay_to_the_last_bit() -> None:
    hidden, head, ids, mask = a_case()
    got = supported_logp(
        hidden, (ids, kept_from(torch.zeros_like(mask))), lambda x: x @ head.T, temperature=0.9, vocabulary=V
    )
    wanted = sampled_logp(hidden, ids, lambda x: x @ head.T, temperature=0.9, vocabulary=V)
    for one, other in zip(got, wanted, strict=True):
        assert one is not None
        assert other is not None
        assert torch.equal(one, other)


def test_no_token_at_all_is_fine() -> None:
    kept = KeptIds.of(np.empty(0, np.int32), np.zeros(1, np.int64))
    logits = torch.zeros(0, V, requires_grad=True)
    logp, h = supported_logp(
        logits, (torch.zeros(0, dtype=torch.int64), kept), lambda x: x, temperature=1.0, vocabulary=V
    )
    assert h is not None
    assert (len(logp), len(h)) == (0, 0)
    logp.sum().backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_give_float32_log_probs_and_gradients_of_their_own(dtype: torch.dtype) -> None:
    hidden, head, ids, mask = a_case()
    logits = (hidden @ head.T).to(dtype).requires_grad_()
    logp, h = supported_logp(logits, (ids, kept_from(mask)), lambda x: x, temperature=1.0, vocabulary=V)
    assert h is not None
    assert (logp.dtype, h.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(logp, naive(logits.float(), ids, mask)[0])
    (gradient,) = torch.autograd.grad(logp.sum(), logits)
    assert gradient.dtype == dtype


def test_a_part_of_the_sets_belongs_to_a_part_of_the_tokens() -> None:
    _, _, _, mask = a_case(unknown=True)
    kept, wanted = kept_from(mask), torch.arange(T) % 3 == 0
    some = kept.select(wanted)
    again = kept_from(mask[wanted])
    assert some.ids.tolist() == again.ids.tolist()
    assert some.sizes.tolist() == again.sizes.tolist()
    assert some.starts.tolist() == again.starts.tolist()
    assert [len(part) for part in kept.split(10)] == [10, 10, 3]
    assert torch.cat([part.ids for part in kept.split(10)]).tolist() == kept.ids.tolist()


@pytest.mark.parametrize("chunk", [1, 1 << 24])
def test_lost_mass_is_what_the_truncation_cuts_from_the_trainers_own(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_ELEMENTS", chunk)
    hidden, head, _, _ = a_case()
    cut = Truncation(top_p=0.8, top_k=6)
    got = lost_mass(hidden, cut, lambda x: x @ head.T, temperature=0.7, vocabulary=V)
    logp = (hidden @ head.T / 0.7).log_softmax(-1)
    kept = kept_of(logp, Limits.of([cut] * T, logp.device)).mask
    wanted = (logp.exp() * ~kept).sum(-1)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert wanted.max() > 0.1
