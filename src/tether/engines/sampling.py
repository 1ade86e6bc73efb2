"""How one token is drawn: randomness that belongs to the request, and the probabilities it was really drawn with.

Nothing here holds state. A uniform number depends on (request seed, position) alone, so a sample does not depend on
what else is in the batch, on its order, on padding, or on how often the batch was cut.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53


class Sampled(NamedTuple):
    """One token a row, all of shape ``[B]`` but the alternatives."""

    ids: Tensor
    logp: Tensor
    """Log-probability, in nats, under the distribution sampled from; under temperature 1 where sampling was greedy."""
    entropy: Tensor
    """Entropy, in nats, of that same distribution."""
    top_k_ids: Tensor | None
    """``[B, k]``, most probable first."""
    top_k_logp: Tensor | None


def uniforms(seeds: NDArray[np.uint64], start: int, count: int) -> NDArray[np.float64]:
    """``[B, count]`` numbers in [0, 1) for positions ``start .. start + count - 1`` of each seed.

    The counter mode of splitmix64 (Steele, Lea, Flood 2014) on a mixed seed, so that neighbouring seeds share nothing;
    the upper 53 bits become the mantissa.

    >>> both = uniforms(np.array([7, 8], dtype=np.uint64), 0, 3)
    >>> both.shape, bool((both[1, 1:] == uniforms(np.array([8], dtype=np.uint64), 1, 2)[0]).all())
    ((2, 3), True)
    """
    counters = np.arange(start + 1, start + count + 1, dtype=np.uint64)
    bits = _mix(_mix(seeds)[:, None] + counters[None, :] * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def sample(logits: Tensor, temperature: Tensor, uniform: Tensor, top_k: int = 0) -> Sampled:
    """Draw one id a row from ``softmax(logits / temperature)`` by inverting its distribution function at ``uniform``.

    ``logits [B, V]`` of any floating type, ``temperature [B]`` (0 is greedy), ``uniform [B]`` float64 in [0, 1).
    Probabilities are float32 log-softmax values, accumulated in float64; a token of probability 0 is never drawn.
    Greedy draws come from a point mass, whose log-probability says nothing: they report temperature 1 instead and are
    for evaluation, not for training. A NaN or +inf in a row makes its ``logp`` NaN: the caller looks at that, later
    and for many tokens at once, so that drawing never waits for the device.

    >>> logits = torch.tensor([[0.0, float("-inf"), 0.0]])
    >>> drawn = sample(logits, torch.ones(1), torch.tensor([0.5], dtype=torch.float64))
    >>> drawn.ids.tolist(), [round(drawn.logp.item(), 4), round(drawn.entropy.item(), 4)]
    ([2], [-0.6931, 0.6931])
    """
    greedy = temperature == 0
    scale = torch.where(greedy, 1.0, temperature)[:, None]
    logp = torch.log_softmax(logits.float() / scale, dim=-1)
    probability = logp.exp()
    impossible = probability == 0
    cumulative = probability.double().cumsum(-1).masked_fill_(impossible, 0.0)
    # The total is read from the sum itself, not taken as 1: then some possible token always lies above the threshold.
    threshold = uniform[:, None] * cumulative.amax(-1, keepdim=True)
    drawn = (cumulative > threshold).to(torch.uint8).argmax(-1)
    ids = torch.where(greedy, logp.argmax(-1), drawn)
    entropy = -(probability * logp.masked_fill(impossible, 0.0)).sum(-1)
    top_logp, top_ids = logp.topk(top_k, dim=-1) if top_k else (None, None)
    return Sampled(ids, logp.gather(-1, ids[:, None])[:, 0], entropy, top_ids, top_logp)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every bit of the input moves half of the bits of the output."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
