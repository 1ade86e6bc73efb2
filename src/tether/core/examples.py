"""Small token batches with known ratios, for docstring examples and tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.tokens import TokenBatch


def tokens_of(
    *,
    log_ratio: Sequence[float | int],
    advantage: Sequence[float | int],
    sequence: Sequence[int] | None = None,
    stale: int = 0,
) -> tuple[TokenBatch, Float[Tensor, "T"]]:
    """Trainable tokens whose current log-probability stands ``log_ratio`` above the sampled one, and that tensor.

    Behavior log-probabilities are 0, so that ``logp - logp_behavior`` is the given number to the last bit.

    >>> tokens, logp = tokens_of(log_ratio=[0.18], advantage=[1.0])
    >>> round(logp.exp().item(), 4)
    1.1972
    """
    d = torch.tensor(list(log_ratio), dtype=torch.float32)
    ids = torch.tensor(list(sequence) if sequence is not None else range(len(d)), dtype=torch.int64)
    behavior = torch.zeros_like(d)
    tokens = TokenBatch(
        logp_behavior=behavior,
        logp_proximal=behavior,
        advantage=torch.tensor(list(advantage), dtype=torch.float32),
        trainable=torch.ones(len(d), dtype=torch.bool),
        sequence=ids,
        group=ids,
        staleness=torch.full((len(d),), stale, dtype=torch.int64),
    )
    return tokens, d.requires_grad_()
