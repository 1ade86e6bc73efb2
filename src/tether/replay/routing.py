"""R3 and R2: the trainer sends every token through the experts chosen for it by the engine, or by itself before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import numpy as np
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import logsigmoid

from tether.records import NO_EXPERT
from tether.registry import REPLAYS


@REPLAYS.register("routing")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Experts chosen before, gates of the current router: ``g_e = exp(z_e) / sum_I exp(z_i)`` for ``e`` in ``I``.

    R3, rollout routing replay (arXiv:2510.11370): ``I`` is the set of experts that the engine's router chose for a
    token in a layer. R2, routing replay (arXiv:2507.18071; compared with R3 in arXiv:2512.01374): ``I`` is the set that
    the trainer's own router chose in its old pass. Old is here what the anchor is: the first forward pass over a batch,
    at the weights that the trainer holds when it is taken. The first update of a batch records and is as it would be
    without; its later updates (``pipeline.updates_per_batch`` > 1) replay, so that between them a ratio moves by what
    was learned and not by experts that changed. Old log-probs at the weights that sampled (the ``[old]`` table) are
    computed with the routes of those weights.

    ``z`` are the trainer's router logits of this moment. The gradient reaches the ``z`` inside ``I``, as a softmax's
    does, and none outside. It changes the logits of the model, hence every log-probability of the policy being trained;
    the reference of a KL penalty keeps its own routes. Where a model's own gates are others, so are these: see
    ``Gates``.

    >>> Routing().source, Routing().missing
    ('engine', 'error')
    """

    source: Literal["engine", "trainer"] = "engine"
    """Whose routes are repeated: those that the engine reported (R3), or the trainer's of the batch's first pass
    (R2)."""
    missing: Literal["error", "own"] = "error"
    """A token without a recorded route: an error, or it takes the trainer's own route and is counted. The trainer's
    own pass has all of them."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What a family of models makes of its router's logits, for given experts: as it does for its own choice.

    Renormalized, the weights of the given experts add up to ``scale``: a softmax over them alone, of the logits ``z``
    (Mixtral, and Qwen3-MoE with ``norm_topk_prob``), or of ``log sigmoid(z)``, which is ``sigmoid(z)`` divided by its
    sum (DeepSeek-V3). The largest is subtracted first, so experts that the router has left behind do not underflow
    together. Not renormalized: a softmax over all, or the sigmoids, of which the given are picked.
    ``[N, E], [N, k] -> [N, k]``, float32.

    >>> import torch
    >>> z, experts = torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([[0, 2]])
    >>> Gates()(z, experts), Gates(renormalize=False)(z, experts)
    (tensor([[0.8808, 0.1192]]), tensor([[0.6439, 0.0871]]))
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    """What it makes of a logit."""
    renormalize: bool = True
    """Whether only the given experts share the weight."""
    scale: float = 1.0
    """Times which the gates are taken."""

    def __call__(self, logits: Float[Tensor, "N E"], experts: Int64[Tensor, "N k"]) -> Float[Tensor, "N k"]:
        """Weights of the experts; differentiable in the logits."""
        z = logits.float()
        if self.renormalize:
            return self.scale * (logsigmoid(z) if self.score == "sigmoid" else z).gather(-1, experts).softmax(-1)
        return self.scale * (z.sigmoid() if self.score == "sigmoid" else z.softmax(-1)).gather(-1, experts)


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
