"""R3: the trainer sends every token through the experts that the engine chose for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from tether.records import NO_EXPERT
from tether.registry import REPLAYS


@REPLAYS.register("routing")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Experts of the engine, gates of the current router: ``g_e = exp(z_e) / sum_I exp(z_i)`` for ``e`` in ``I``.

    R3, rollout routing replay (arXiv:2510.11370). ``I`` is the set of experts that the engine's router chose for a
    token in a layer, ``z`` are the trainer's router logits of this moment. The gradient reaches the ``z`` inside ``I``,
    as a softmax's does, and none outside. It changes the logits of the model, hence every log-probability of the
    policy being trained; the reference of a KL penalty keeps its own routes. ``[N, E], [N, k] -> [N, k]``.

    >>> import torch
    >>> Routing().missing
    'error'
    >>> z = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    >>> gate(z, torch.tensor([[0, 2]]), renormalize=True)
    tensor([[0.8808, 0.1192]])
    """

    missing: Literal["error", "own"] = "error"
    """A token without a recorded route: an error, or it takes the trainer's own route and is counted."""


def gate(logits: Float[Tensor, "N E"], experts: Int64[Tensor, "N k"], *, renormalize: bool) -> Float[Tensor, "N k"]:
    """Weights, float32, of the given experts under these router logits.

    With ``renormalize`` a softmax over the given ones alone (Mixtral, and Qwen3-MoE with ``norm_topk_prob``), whose
    largest logit is subtracted first: experts that the router has left behind do not underflow together. Else a softmax
    over all, of which the given are picked. Each is what its model does for its own choice.
    """
    if renormalize:
        return logits.float().gather(-1, experts).softmax(-1)
    return logits.float().softmax(-1).gather(-1, experts)


def share_rerouted(one: NDArray[np.integer], other: NDArray[np.integer]) -> float:
    """Share of (token, layer) pairs whose sets of experts differ between two ``[..., layers, k]``; NaN of none.

    In what order a router names the experts says nothing. A pair that is not known in both does not count.

    >>> one, other = np.array([[[0, 1]], [[2, 3]], [[4, 5]]]), np.array([[[1, 0]], [[2, 4]], [[-1, -1]]])
    >>> share_rerouted(one, other)
    0.5
    """
    is_known = _known(one, other)
    return float(is_rerouted(one, other)[is_known].mean()) if is_known.any() else float("nan")


def is_rerouted(one: NDArray[np.integer], other: NDArray[np.integer]) -> NDArray[np.bool_]:
    """``[..., layers]``: whether the sets of experts differ between two ``[..., layers, k]``, where both are known.

    >>> is_rerouted(np.array([[[0, 1]], [[2, 3]], [[4, 5]]]), np.array([[[1, 0]], [[2, 4]], [[-1, -1]]])).tolist()
    [[False], [True], [False]]
    """
    differs: NDArray[np.bool_] = (np.sort(one, axis=-1) != np.sort(other, axis=-1)).any(-1)
    return differs & _known(one, other)


def _known(one: NDArray[np.integer], other: NDArray[np.integer]) -> NDArray[np.bool_]:
    if one.shape != other.shape:
        raise ValueError(f"routes to compare must have one shape; got {one.shape} and {other.shape}")
    known: NDArray[np.bool_] = ((one != NO_EXPERT) & (other != NO_EXPERT)).all(-1)
    return known
