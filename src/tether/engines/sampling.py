"""How one token is drawn: randomness that belongs to the request, and the probabilities it was really drawn with.

Nothing here holds state. A uniform number depends on (request seed, position) alone, so a sample does not depend on
what else is in the batch, on its order, on padding, or on how often the batch was cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.core.truncation import Limits, kept_of
from tether.engines.kept import as_bits

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_TO_UNIT = 2.0**-53

_BLOCK = 256
"""Ids of a vocabulary that are summed before they are searched."""

_LOT = 2**19
"""Logits a processor works on at once: what fits its caches, and memory that the allocator has at hand."""

_BELOW_ONE = 1 - 2.0**-53

_LOWEST = -1000.0
"""Stands for the log of a probability 0 where it is multiplied by that 0; float32 ends at -104."""


class Sampled(NamedTuple):
    """One token a row, all of shape ``[B]`` but the alternatives."""

    ids: Tensor
    logp: Tensor
    """Log-probability, in nats, under the distribution sampled from; under temperature 1 where sampling was greedy."""
    entropy: Tensor
    """Entropy, in nats, of that same distribution before truncation."""
    top_k_ids: Tensor | None
    """``[B, k]``, most probable first."""
    top_k_logp: Tensor | None
    """Their log-probabilities before truncation."""
    kept: Tensor | None = None
    """``[B, V / 8]`` bits of what was sampled among, where somebody wants to know."""


def uniforms(seeds: NDArray[np.uint64], start: NDArray[np.int64] | int, count: int) -> NDArray[np.float64]:
    """``[B, count]`` numbers in [0, 1) for positions ``start .. start + count - 1`` of each seed; ``start`` may be one
    for all, or ``[B]``.

    The counter mode of splitmix64 (Steele, Lea, Flood 2014) on a mixed seed, so that neighbouring seeds share nothing;
    the upper 53 bits become the mantissa.

    >>> both = uniforms(np.array([7, 8], dtype=np.uint64), 0, 3)
    >>> both.shape, bool((both[1, 1:] == uniforms(np.array([8], dtype=np.uint64), 1, 2)[0]).all())
    ((2, 3), True)
    """
    first: NDArray[np.uint64] = np.asarray(start, dtype=np.uint64).reshape(-1, 1)
    steps: NDArray[np.uint64] = np.arange(1, count + 1, dtype=np.uint64)
    bits = _mix(_mix(seeds)[:, None] + (first + steps) * _GOLDEN)
    return (bits >> np.uint64(11)).astype(np.float64) * _TO_UNIT


def sample(
    logits: Tensor,
    temperature: Tensor,
    uniform: Tensor,
    top_k: int = 0,
    *,
    may_be_greedy: bool = True,
    limits: Limits | None = None,
) -> Sampled:
    """Draw one id a row from ``softmax(logits / temperature)`` by inverting its distribution function at ``uniform``.

    ``logits [B, V]`` of any floating type, ``temperature [B]`` (0 is greedy, which may be ruled out beforehand: to look
    for it here would wait for the device), ``uniform [B]`` float64 in [0, 1).
    Probabilities are float32 log-softmax values, accumulated in float64; a token of probability 0 is never drawn.
    With ``limits``, what they keep of that is renormalized and drawn from, in the order of ids as well.
    Greedy draws come from a point mass, whose log-probability says nothing: they report temperature 1 instead and are
    for evaluation, not for training. A NaN or +inf in a row makes its ``logp`` NaN: the caller looks at that, later
    and for many tokens at once, so that drawing never waits for the device.

    >>> logits = torch.tensor([[0.0, float("-inf"), 0.0]])
    >>> drawn = sample(logits, torch.ones(1), torch.tensor([0.5], dtype=torch.float64))
    >>> drawn.ids.tolist(), [round(drawn.logp.item(), 4), round(drawn.entropy.item(), 4)]
    ([2], [-0.6931, 0.6931])
    """
    lot = max(1, _LOT // logits.shape[1])
    if logits.device.type == "cpu" and len(logits) > lot:
        parts = [slice(start, start + lot) for start in range(0, len(logits), lot)]
        cuts = [None if limits is None else limits.at(own) for own in parts]
        return joined(
            [
                sample(logits[own], temperature[own], uniform[own], top_k, may_be_greedy=may_be_greedy, limits=cut)
                for own, cut in zip(parts, cuts, strict=True)
            ]
        )
    greedy = temperature == 0 if may_be_greedy else None
    scale = temperature if greedy is None else torch.where(greedy, 1.0, temperature)
    logp = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    probability = logp.exp()
    kept = None if limits is None else kept_of(logp, limits)
    weight = probability if kept is None else probability * kept.mask
    ids = _invert(weight, uniform)
    if greedy is not None:
        ids = torch.where(greedy, (logp if kept is None else weight).argmax(-1), ids)
    chosen = logp.gather(-1, ids[:, None])[:, 0]
    if kept is not None:
        chosen = (chosen.double() - kept.log_mass).float()
    top_logp, top_ids = logp.topk(top_k, dim=-1) if top_k else (None, None)
    # In place: fresh memory of the size of the logits costs more than the arithmetic done in it.
    entropy = -logp.clamp_(min=_LOWEST).mul_(probability).sum(-1)
    bits = as_bits(kept.mask) if kept is not None and limits is not None and limits.reports else None
    return Sampled(ids, chosen, entropy, top_ids, top_logp, bits)


def joined(parts: Sequence[Sampled]) -> Sampled:
    """The rows of all parts, one after the other. Rows of which nothing was cut keep nothing that is worth telling."""
    top_ids = [part.top_k_ids for part in parts if part.top_k_ids is not None]
    top_logp = [part.top_k_logp for part in parts if part.top_k_logp is not None]
    return Sampled(
        torch.cat([part.ids for part in parts]),
        torch.cat([part.logp for part in parts]),
        torch.cat([part.entropy for part in parts]),
        torch.cat(top_ids) if top_ids else None,
        torch.cat(top_logp) if top_logp else None,
        _joined_bits(parts),
    )


def _joined_bits(parts: Sequence[Sampled]) -> Tensor | None:
    width = next((part.kept.shape[1] for part in parts if part.kept is not None), None)
    if width is None:
        return None
    bits = [
        part.ids.new_zeros(len(part.ids), width, dtype=torch.uint8) if part.kept is None else part.kept
        for part in parts
    ]
    return torch.cat(bits)


def _invert(probability: Tensor, uniform: Tensor) -> Tensor:
    """The first id of each row of ``probability [B, V]`` at which the running sum exceeds ``uniform`` times the total.

    In a large vocabulary that is searched twice: for the block of ids, with the sums of blocks, then in that block. A
    running sum over all of it, and what is read from that, takes longer than everything else here together.
    """
    size = probability.shape[-1]
    if size <= _BLOCK:
        return _first_above(probability.double(), uniform)[0]
    whole = size - size % _BLOCK
    sums = probability[:, :whole].reshape(len(probability), -1, _BLOCK).sum(-1, dtype=torch.float64)
    if whole < size:
        sums = torch.cat([sums, probability[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)], dim=-1)
    block, above = _first_above(sums, uniform)
    own = sums.gather(-1, block[:, None])
    within = ((above - sums.cumsum(-1).gather(-1, block[:, None]) + own) / own)[:, 0].clamp(0.0, _BELOW_ONE)
    ids = block[:, None] * _BLOCK + torch.arange(_BLOCK, device=block.device)
    inside = probability.gather(-1, ids.clamp(max=size - 1)).double().masked_fill_(ids >= size, 0.0)
    return block * _BLOCK + _first_above(inside, within)[0]


def _first_above(weight: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """The first of ``weight [B, n]`` at which the running sum is above ``share [B]`` in [0, 1) of the total, and that
    threshold ``[B, 1]``. Never one of weight 0."""
    cumulative = weight.cumsum(-1).masked_fill_(weight == 0, 0.0)
    # The total is read from the sum itself, not taken as 1: then some possible one always lies above the threshold.
    threshold = share[:, None] * cumulative.amax(-1, keepdim=True)
    return (cumulative > threshold).to(torch.uint8).argmax(-1), threshold


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every bit of the input moves half of the bits of the output."""
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))
