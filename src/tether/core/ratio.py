"""Log-ratios: which two policies (edge), per token or per response (level), guarded once.

::

    engine = old/behavior      update = pi/old        total = pi/behavior = engine x update
    weight = proximal/behavior clipped = pi/proximal  total = weight x clipped
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import hardtanh

from tether.core.tokens import TokenBatch, per_sequence_mean, per_sequence_sum

Edge = Literal["total", "clipped", "weight", "update", "engine"]
"""``update`` and ``engine`` need old log-probs."""
Level = Literal["token", "sequence", "product"]
"""One ratio a token; one a response, the geometric mean of its tokens' (GSPO); or their plain product."""
Policy = Literal["pi", "proximal", "behavior", "old"]

ENDS: Final[dict[Edge, tuple[Policy, Policy]]] = {
    "total": ("pi", "behavior"),
    "clipped": ("pi", "proximal"),
    "weight": ("proximal", "behavior"),
    "update": ("pi", "old"),
    "engine": ("old", "behavior"),
}
"""Numerator and denominator of every edge."""

LOG_RATIO_LIMIT = 20.0
"""Guard, in nats, applied once before ``exp``: e^20 = 4.85e8. A numerical guard, not a clip; it is counted."""


class Ratio(NamedTuple):
    """Which log-ratio a factor is handed."""

    edge: Edge
    level: Level


def log_ratio(logp: Float[Tensor, "T"], reference: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
    """``logp - reference`` in float32, held within the guard; beyond it the gradient is zero.

    >>> import torch
    >>> log_ratio(torch.tensor([-1.0]), torch.tensor([-95.0]))
    tensor([20.])
    """
    return guarded(logp.float() - reference.float())


def guarded(d: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
    """Held within the guard; at it and beyond the gradient is zero.

    >>> import torch
    >>> guarded(torch.tensor([-25.0, 0.5]))
    tensor([-20.0000,   0.5000])
    """
    # not clamp, which is the same forward: its backward reads the tokens four times, this one's once
    return hardtanh(d, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def beyond_guard(logp: Float[Tensor, "T"], reference: Float[Tensor, "T"]) -> Bool[Tensor, "T"]:
    """Tokens that the guard touched."""
    return (logp.float() - reference.float()).abs() > LOG_RATIO_LIMIT


def edge_log_ratio(edge: Edge, logp: Float[Tensor, "T"], tokens: TokenBatch, level: Level) -> Float[Tensor, "T"]:
    """The log-ratio of an edge at a level, ``[T]``, guarded; differentiable in ``logp`` where the edge has it.

    ``sequence`` is GSPO's geometric mean ``s_b = mean_t d_t`` (arXiv:2507.18071), ``product`` the sum
    ``s_b = sum_t d_t``, both in the token form ``logp_t - sg[logp_t] + sg[s_b]``: every token carries the ratio of its
    response and only its own gradient, so a mask or weight on one token touches that token alone.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.1, 0.3], advantage=[1.0, 1.0], sequence=[0, 0])
    >>> [round(x, 4) for x in edge_log_ratio("total", logp, tokens, "sequence").tolist()]
    [0.2, 0.2]
    >>> [round(x, 4) for x in edge_log_ratio("total", logp, tokens, "product").tolist()]
    [0.4, 0.4]
    """
    above, below = (logp_of(policy, logp, tokens) for policy in ENDS[edge])
    if level == "token":
        return log_ratio(above, below)
    of_response = per_sequence_mean if level == "sequence" else per_sequence_sum
    moved = of_response(above.detach().float() - below.float(), tokens)
    if above.requires_grad:
        moved = moved + (above.float() - above.detach().float())
    return guarded(moved)


def logp_of(policy: Policy, logp: Float[Tensor, "T"], tokens: TokenBatch) -> Float[Tensor, "T"]:
    """The sampled tokens under one of the policies; ``logp`` is the current one's."""
    if policy == "pi":
        return logp
    if policy == "behavior":
        return tokens.logp_behavior
    if policy == "proximal":
        return tokens.logp_proximal
    assert tokens.logp_old is not None, "a recipe that reads old log-probs is refused where nobody provides them"
    return tokens.logp_old
