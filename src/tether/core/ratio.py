"""Log-ratios: which two policies (edge), per token or per response (level), guarded once.

::

    engine = old/behavior      update = pi/old        total = pi/behavior = engine x update
    weight = proximal/behavior clipped = pi/proximal  total = weight x clipped
"""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float
from torch import Tensor

from tether.core.tokens import TokenBatch, per_sequence_sum, response_length

Edge = Literal["total", "clipped", "weight"]
"""Edges that a run can measure today; ``update`` and ``engine`` need old log-probs."""
Level = Literal["token", "sequence"]

LOG_RATIO_LIMIT = 20.0
"""Guard, in nats, applied once before ``exp``: e^20 = 4.85e8. A numerical guard, not a clip; it is counted."""


def log_ratio(logp: Float[Tensor, "T"], reference: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
    """``logp - reference`` in float32, held within the guard; beyond it the gradient is zero.

    >>> import torch
    >>> log_ratio(torch.tensor([-1.0]), torch.tensor([-95.0]))
    tensor([20.])
    """
    return (logp.float() - reference.float()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def beyond_guard(logp: Float[Tensor, "T"], reference: Float[Tensor, "T"]) -> Bool[Tensor, "T"]:
    """Tokens that the guard touched."""
    return (logp.float() - reference.float()).abs() > LOG_RATIO_LIMIT


def edge_log_ratio(edge: Edge, logp: Float[Tensor, "T"], tokens: TokenBatch, level: Level) -> Float[Tensor, "T"]:
    """The log-ratio of an edge at a level, ``[T]``, guarded; differentiable in ``logp`` where the edge has it.

    ``sequence`` is GSPO's geometric mean ``s_b = mean_t d_t`` (arXiv:2507.18071) in its token form
    ``logp_t - sg[logp_t] + sg[s_b]``: every token carries the ratio of its response and only its own gradient, so a
    mask or weight on one token touches that token alone.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.1, 0.3], advantage=[1.0, 1.0], sequence=[0, 0])
    >>> [round(x, 4) for x in edge_log_ratio("total", logp, tokens, "sequence").tolist()]
    [0.2, 0.2]
    """
    numerator = tokens.logp_proximal if edge == "weight" else logp
    denominator = tokens.logp_proximal if edge == "clipped" else tokens.logp_behavior
    if level == "token":
        return log_ratio(numerator, denominator)
    difference = numerator.detach().float() - denominator.float()
    mean = per_sequence_sum(difference, tokens) / response_length(tokens)
    own_gradient = numerator.float() - numerator.detach().float()
    return (own_gradient + mean).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
