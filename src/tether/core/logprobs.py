"""Log-probability and entropy of sampled tokens, without ever holding ``[T, V]`` logits for all tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tether.core.chosen import chosen_logp

Head = Callable[[Tensor], Tensor]
"""Hidden states ``[n, H]`` to logits ``[n, V]``."""
Entropy = Literal["none", "detached", "differentiable"]

CHUNK_ELEMENTS = 1 << 24
"""Logits worked on at once: 64 MiB in float32."""
KEPT_CHUNKS = 4
"""Most chunks whose logits are kept for backward instead of being computed twice."""


def sampled_logp(
    hidden: Float[Tensor, "T H"],
    ids: Int[Tensor, "T"],
    head: Head,
    *,
    temperature: float,
    vocabulary: int,
    entropy: Entropy = "detached",
) -> tuple[Float[Tensor, "T"], Float[Tensor, "T"] | None]:
    """``log softmax(head(h_t) / temperature)[id_t]`` and the entropy of that distribution, float32, in nats.

    Works through chunks of tokens. Up to a few chunks, their logits wait for backward; of more tokens, each chunk's
    are dropped after use and computed again, so memory is bounded whatever T and V are. Temperature divides the
    logits, never the log-probability.

    >>> eye = torch.eye(3)
    >>> logp, h = sampled_logp(eye[:1] * 2, torch.tensor([0]), lambda x: x, temperature=1.0, vocabulary=3)
    >>> round(logp.item(), 4), round(h.item(), 4)
    (-0.2395, 0.6656)
    """
    rows = max(1, CHUNK_ELEMENTS // max(vocabulary, 1))
    is_kept = not torch.is_grad_enabled() or len(ids) <= KEPT_CHUNKS * rows
    pieces = [
        _chunk(h, i, head, temperature, entropy)
        if is_kept
        else checkpoint(_chunk, h, i, head, temperature, entropy, use_reentrant=False)
        for h, i in zip(torch.split(hidden, rows), torch.split(ids, rows), strict=True)
    ]
    logp = torch.cat([piece[0] for piece in pieces])
    return logp, None if entropy == "none" else torch.cat([piece[1] for piece in pieces])


def _chunk(
    hidden: Float[Tensor, "n H"], ids: Int[Tensor, "n"], head: Head, temperature: float, entropy: Entropy
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n"]]:
    logp, h = chosen_logp(head(hidden), ids, temperature, entropy=entropy != "none")
    return logp, h if entropy == "differentiable" else h.detach()
