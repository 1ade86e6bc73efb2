"""Attention of one new token against a cache, without copying the cache.

The stock path repeats the cached keys and values for every query head of a group and pads the call for a fused kernel,
each token anew: on a CPU that is most of the time of a decode step. Here the query heads that share a key are rows of
one small matrix product, or, in a batch of few heads, the queries of one fused call. Prompts, with many queries, take
the stock path.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

NAME = "tether_grouped"

_FEW_HEADS = 16
"""Rows times heads up to which the number of calls counts, not what they compute."""


def use_grouped_attention(model: Any) -> None:
    """Switch a transformers model that attends with ``sdpa`` to this one; leave any other as it is."""
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    from transformers.modeling_utils import AttentionInterface

    if model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.set_attn_implementation(NAME)


def grouped_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """``query [B, H, Q, D]`` against ``key, value [B, H / G, K, D]``; gives ``[B, Q, H, D]``, as transformers expects.

    Scores and their softmax are float32. The mask is boolean (True is seen) or added to the scores.

    >>> query, key = torch.ones(1, 4, 1, 8), torch.ones(1, 2, 3, 8)
    >>> value = torch.arange(3.0).view(1, 1, 3, 1).expand(1, 2, 3, 8)
    >>> grouped_attention(nn.Module(), query, key, value, torch.tensor([[[[True, True, False]]]]))[0][0, 0, :, 0]
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    batch, heads, queries, width = query.shape
    if queries != 1 or options.get("position_bias") is not None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return out, None
    scaling = options.get("scaling")
    grouped = query.reshape(batch, key.shape[1], heads // key.shape[1], width)
    if batch * heads <= _FEW_HEADS and (attention_mask is None or attention_mask.dtype == torch.bool):
        out = scaled_dot_product_attention(grouped, key, value, attn_mask=attention_mask, scale=scaling)
        return out.reshape(batch, 1, heads, value.shape[-1]), None
    scores = torch.matmul(grouped, key.transpose(2, 3)).float() * (width**-0.5 if scaling is None else scaling)
    if attention_mask is not None:
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        else:
            scores = scores + attention_mask
    seen = torch.softmax(scores, dim=-1).to(value.dtype)
    return torch.matmul(seen, value).reshape(batch, 1, heads, value.shape[-1]), None
