"""Log-probability and entropy of sampled tokens, without ever holding ``[T, V]`` logits for all tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

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
    rows = rows_at_once(vocabulary)

    def chunk(hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        logp, h = chosen_logp(head(hidden), ids, temperature, entropy=entropy != "none")
        return logp, h if entropy == "differentiable" else h.detach()

    logp, h = chunked(chunk, torch.split(hidden, rows), torch.split(ids, rows))
    return logp, None if entropy == "none" else h


def rows_at_once(vocabulary: int) -> int:
    """Tokens of a chunk."""
    return max(1, CHUNK_ELEMENTS // max(vocabulary, 1))


def chunked(chunk: Callable[..., tuple[Tensor, Tensor]], *parts: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """What ``chunk`` makes of each chunk of the parts, joined; of more than a few it is made again in backward."""
    is_kept = not torch.is_grad_enabled() or len(parts[0]) <= KEPT_CHUNKS
    pieces = [
        chunk(*own) if is_kept else checkpoint(chunk, *own, use_reentrant=False) for own in zip(*parts, strict=True)
    ]
    logp, h = (torch.cat(column) for column in zip(*pieces, strict=True))
    return logp, h
