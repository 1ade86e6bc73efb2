"""How far two policies stand apart at one token, from the few probabilities that are known there.

The vocabulary is cut into parts: the sampled token and the rest (binary), or the sampled token, K others and the rest
(top-k). A finer partition never shows less: binary <= top-k <= all of it. Float64 and detached, since probabilities
near 0 or 1 cancel in float32.
"""

from __future__ import annotations

import functools
import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tether.core.stretches import in_stretches

LEAST_PROBABILITY = 1e-12
"""Floor of the probability of a token, and of what is left beside the sampled one and K others."""
LEAST_REST = 1e-8
"""Floor of ``1 - p``: what is left beside a token that float32 takes for certain."""


def bernoulli_kl(logp: Float[Tensor, "T"], logq: Float[Tensor, "T"]) -> Float64[Tensor, "T"]:
    """``D(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`` of "this token or another", in nats, ``[T]``.

    ``1 - p = -expm1(logp)`` is exact where p is near 1; p is at least 1e-12 and ``1 - p`` at least 1e-8, so the answer
    is finite; it is never negative, and exactly 0 where the two are equal.

    >>> import torch
    >>> p, q = torch.tensor([0.8, 0.9, 0.5]).log(), torch.tensor([0.99, 0.1, 0.5]).log()
    >>> [round(x, 4) for x in bernoulli_kl(p, q).tolist()]
    [0.4287, 1.7578, 0.0]
    """
    return in_stretches(_bernoulli_kl, logp, logq)


def bernoulli_kl_either_way(logp: Float[Tensor, "T"], logq: Float[Tensor, "T"]) -> Float64[Tensor, "T"]:
    """The larger of ``D(p || q)`` and ``D(q || p)`` of "this token or another", ``[T]``.

    >>> import torch
    >>> p, q = torch.tensor([0.8, 0.9]).log(), torch.tensor([0.99, 0.1]).log()
    >>> [round(x, 4) for x in bernoulli_kl_either_way(q, p).tolist()]
    [0.4287, 1.7578]
    """
    return in_stretches(functools.partial(_bernoulli_kl, either_way=True), logp, logq)


def _bernoulli_kl(
    logp: Float[Tensor, "_"], logq: Float[Tensor, "_"], *, either_way: bool = False
) -> Float64[Tensor, "_"]:
    log_p, log_q = _held(logp), _held(logq)
    rest_p, rest_q = ((-x.expm1()).clamp_(min=LEAST_REST) for x in (log_p, log_q))
    moved, rest_moved = log_p - log_q, (rest_p / rest_q).log_()
    kl = log_p.exp_() * moved + rest_p * rest_moved
    if either_way:
        kl = torch.maximum(kl, -(log_q.exp_() * moved + rest_q * rest_moved))
    return kl.clamp_(min=0.0)  # floors may lose 1e-8


def binary_tv(logp: Float[Tensor, "T"], logq: Float[Tensor, "T"]) -> Float64[Tensor, "T"]:
    """``|p - q|``: the total variation of "this token or another", ``[T]``.

    >>> round(binary_tv(torch.tensor([0.55]).log(), torch.tensor([0.5]).log()).item(), 6)
    0.05
    """
    return in_stretches(lambda p, q: (_held(p).exp() - _held(q).exp()).abs(), logp, logq)


def partition(logp: Float[Tensor, "T"], others: Float[Tensor, "T K"]) -> Float64[Tensor, "T parts"]:
    """Probabilities of the sampled token, of K others (0 for ``-inf``) and of the rest, ``[T, K + 2]``.

    >>> partition(torch.tensor([0.5]).log(), torch.tensor([[0.25, 0.0]]).log())
    tensor([[0.5000, 0.2500, 0.0000, 0.2500]], dtype=torch.float64)
    """
    named = torch.cat([logp.detach()[:, None], others.detach()], dim=-1).double().clamp(max=0.0).exp()
    rest = (1.0 - named.sum(-1, keepdim=True)).clamp(min=LEAST_PROBABILITY)
    return torch.cat([named, rest], dim=-1)


def total_variation(p: Float64[Tensor, "T parts"], q: Float64[Tensor, "T parts"]) -> Float64[Tensor, "T"]:
    """``1/2 sum |p - q|`` over the parts, ``[T]``.

    >>> p, q = torch.tensor([[0.6, 0.3, 0.1], [0.5, 0.25, 0.25]]).double().split(1)
    >>> round(total_variation(p, q).item(), 6)
    0.15
    """
    return 0.5 * (p - q).abs().sum(-1)


def kullback_leibler(p: Float64[Tensor, "T parts"], q: Float64[Tensor, "T parts"]) -> Float64[Tensor, "T"]:
    """``sum p log(p / q)`` over the parts, in nats, ``[T]``; a part of probability 0 under p adds 0.

    >>> p, q = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.5, 0.25, 0.25, 0.0]]).double().split(1)
    >>> round(kullback_leibler(p, q).item(), 6)
    0.07246
    """
    return torch.xlogy(p, p.clamp(min=LEAST_PROBABILITY) / q.clamp(min=LEAST_PROBABILITY)).sum(-1)


def _held(logp: Float[Tensor, "T"]) -> Float64[Tensor, "T"]:
    return logp.detach().double().clamp(math.log(LEAST_PROBABILITY), 0.0)
