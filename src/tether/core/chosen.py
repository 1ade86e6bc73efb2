"""Log-probability of one chosen entry a row of logits, and the row's entropy, with their gradient written out.

Left to autograd, each of ten small operations would read and write ``[n, V]`` numbers, and keep some: at vocabularies
of language models that costs more than the output layer itself. On a CPU a few rows go through all of them while they
are in its cache.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

LEAST = -1e30
"""Stands for the logarithm of 0 where it is multiplied by 0."""
CACHED_ELEMENTS = 1 << 19
"""Logits of the rows that a CPU works on at once: 2 MiB in float32."""


def chosen_logp(
    logits: Float[Tensor, "n V"], ids: Int[Tensor, "n"], temperature: float, *, entropy: bool
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    """``logp = (z / t - logsumexp(z / t))[id]`` and ``h = -sum p log p``, float32; h is 0 where it is not asked for.

    The gradient is ``(g (onehot(id) - p) - g_h p (log p + h)) / t``, for which only the logits are kept.

    >>> logp, h = chosen_logp(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0]), 1.0, entropy=True)
    >>> round(logp.item(), 4), round(h.item(), 4)
    (-0.2395, 0.6656)
    """
    logp, h = _Chosen.apply(logits, ids, temperature, entropy)  # type: ignore[no-untyped-call]
    return logp, h


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        parts = [_forward(_scaled(logits[own], temperature), ids[own], entropy) for own in _blocks(logits)]
        logp, h, normalizer = (torch.cat(column) for column in zip(*parts, strict=True))
        ctx.save_for_backward(logits, ids, h, normalizer)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        return logp, h

    @staticmethod
    def backward(ctx: Any, pull: Tensor | None, pull_h: Tensor | None) -> tuple[Tensor, None, None, None]:
        logits, ids, h, normalizer = ctx.saved_tensors
        pull = torch.zeros_like(h) if pull is None else pull / ctx.temperature
        gradient = torch.empty_like(logits)
        pull_h = None if pull_h is None else pull_h / ctx.temperature
        for own in _blocks(logits):
            on_h = None if pull_h is None else pull_h[own]
            scaled = _scaled(logits[own], ctx.temperature)
            gradient[own] = _backward(scaled, ids[own], (h[own], normalizer[own]), pull[own], on_h)
        return gradient, None, None, None


def _forward(scaled: Tensor, ids: Tensor, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability, entropy and normalizer of a few rows."""
    largest = scaled.amax(-1, keepdim=True)
    below = scaled - largest
    chosen = below.gather(-1, ids[:, None])
    if entropy:
        weight = below.exp()
        total = weight.sum(-1, keepdim=True)
        spread = torch.linalg.vecdot(weight, below.clamp_(min=LEAST))[:, None]
        h = total.log() - spread / total
    else:
        total = below.exp_().sum(-1, keepdim=True)
        h = torch.zeros_like(total)
    return (chosen - total.log())[:, 0], h[:, 0], (largest + total.log())[:, 0]


def _backward(scaled: Tensor, ids: Tensor, known: tuple[Tensor, Tensor], pull: Tensor, pull_h: Tensor | None) -> Tensor:
    """Gradient of a few rows of scaled logits whose entropy and normalizer are known."""
    h, normalizer = known
    every = scaled - normalizer[:, None]
    if pull_h is None:
        gradient = every.exp_().mul_(-pull[:, None])
    else:
        gradient = every.exp()
        gradient.mul_(every.clamp_(min=LEAST).add_(h[:, None]).mul_(-pull_h[:, None]).sub_(pull[:, None]))
    return gradient.scatter_add_(-1, ids[:, None], pull[:, None])


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits.float() if temperature == 1.0 else logits.float() / temperature


def _blocks(logits: Tensor) -> list[slice]:
    """Rows that are worked on at once: as many as the cache holds, or on a GPU all; one empty block of no row."""
    count = len(logits)
    rows = max(1, CACHED_ELEMENTS // max(logits.shape[1], 1)) if logits.device.type == "cpu" else max(count, 1)
    return [slice(start, start + rows) for start in range(0, max(count, 1), rows)]
