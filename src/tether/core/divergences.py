"""How far two policies stand apart at one token: the sampled token against everything else. Float64, detached."""

from __future__ import annotations

import math

from jaxtyping import Float, Float64
from torch import Tensor

LEAST_PROBABILITY = 1e-12
"""Floor of the probability of a token."""
LEAST_REST = 1e-8
"""Floor of ``1 - p``: what is left beside a token that float32 takes for certain."""


def bernoulli_kl(logp: Float[Tensor, "T"], logq: Float[Tensor, "T"]) -> Float64[Tensor, "T"]:
    """``D(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`` of "this token or another", in nats, ``[T]``.

    ``1 - p = -expm1(logp)`` is exact where p is near 1; p is at least 1e-12 and ``1 - p`` at least 1e-8, so the answer
    is finite; it is exactly 0 where the two are equal.

    >>> import torch
    >>> p, q = torch.tensor([0.8, 0.9, 0.5]).log(), torch.tensor([0.99, 0.1, 0.5]).log()
    >>> [round(x, 4) for x in bernoulli_kl(p, q).tolist()]
    [0.4287, 1.7578, 0.0]
    """
    log_p, log_q = _held(logp), _held(logq)
    rest_p, rest_q = ((-x.expm1()).clamp(min=LEAST_REST) for x in (log_p, log_q))
    return log_p.exp() * (log_p - log_q) + rest_p * (rest_p / rest_q).log()


def _held(logp: Float[Tensor, "T"]) -> Float64[Tensor, "T"]:
    return logp.detach().double().clamp(math.log(LEAST_PROBABILITY), 0.0)
