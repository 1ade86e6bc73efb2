"""A prompt that goes through the model once for several completions: which models can, how many, what a token sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from tether.errors import ModelError

SharePrompt = Literal["auto", "on", "off"]

TOKEN_COST = 4.0
"""What a token costs outside attention, in pairs of attention for each unit of hidden size; measured by
``benchmarks/sharing.py``. The number of completions a row goes with its square root."""
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest difference of a token's hidden state between the two layouts, relative to the largest number in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSharing:
    """How many completions read one copy of their prompt.

    A row of P prompt tokens and n completions of c tokens puts P + n c tokens through the layers, and (P + n c)^2 pairs
    through the attention, which computes the pairs it then masks. If a token costs as much outside attention as k
    pairs do, a completion's part of this, ``(k (P + n c) + (P + n c)^2) / n``, is least at n = sqrt(P (P + k)) / c.

    >>> sharing = PromptSharing(token_cost=4.0 * 576)
    >>> [sharing.completions_per_row(*lengths) for lengths in [(40, 32.0), (40, 1000.0), (1000, 200.0)]]
    [10, 1, 9]
    """

    token_cost: float
    """k: pairs of attention that cost as much as a token does in all other layers."""

    def completions_per_row(self, prompt: int, completion: float) -> int:
        """For a prompt of so many tokens and completions of so many in the mean; at least 1."""
        return max(1, round(math.sqrt(prompt * (prompt + self.token_cost)) / max(completion, 1.0)))


def sharing_of(model: Any) -> PromptSharing:
    """How a transformers model shares prompts; ``ModelError`` with the reason if it cannot.

    Every layer must attend to all that came before, through ``sdpa`` or ``eager``, which take any mask. Whether the
    model's positions and its other layers bear it as well is tried: a few tokens must get the hidden states they get
    in rows of their own.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer

    attention = model.config._attn_implementation
    if attention not in ("sdpa", "eager"):
        raise ModelError(f"its attention is {attention!r}, and only 'sdpa' and 'eager' take any mask")
    kinds = {type(layer).__name__ for layer in DynamicCache(config=model.config).layers} - {DynamicLayer.__name__}
    if kinds:
        raise ModelError(f"some of its layers do not attend to all earlier tokens ({', '.join(sorted(kinds))})")
    try:
        gap = _probe(model)
    except Exception as error:  # a model's own code, given a mask that it may never have seen
        raise ModelError(f"it does not run with a mask of its own ({type(error).__name__}: {error})") from error
    if not gap <= TOLERANCE.get(model.dtype, TOLERANCE[torch.bfloat16]):
        raise ModelError(f"its hidden states are not the same when completions share a row (relative gap {gap:.2g})")
    return PromptSharing(token_cost=TOKEN_COST * model.config.get_text_config().hidden_size)


def attention_mask(model: Any, branch: Int64[Tensor, "B L"]) -> Tensor:
    """``branch_mask`` in the form that the model's attention takes: boolean, or added to the scores."""
    seen = branch_mask(branch)[:, None]
    if model.config._attn_implementation == "sdpa":
        return seen
    return torch.zeros_like(seen, dtype=model.dtype).masked_fill(~seen, torch.finfo(model.dtype).min)


def branch_mask(branch: Int64[Tensor, "B L"]) -> Bool[Tensor, "B L L"]:
    """True where a query (second to last axis) sees a key: earlier or itself, of the prompt or of its own completion.

    >>> branch_mask(torch.tensor([[0, 1, 2, 2]])).int()
    tensor([[[1, 0, 0, 0],
             [1, 1, 0, 0],
             [1, 0, 1, 0],
             [1, 0, 1, 1]]], dtype=torch.int32)
    """
    order = torch.arange(branch.shape[1], device=branch.device)
    key = branch[:, None, :]
    seen: Tensor = (order[:, None] >= order[None, :]) & ((key == 0) | (key == branch[:, :, None]))
    return seen


@torch.no_grad()
def _probe(model: Any) -> float:
    """Relative gap of hidden states between three completions of one prompt in one row, and in three.

    In float32 the worst token counts. In less, rounding may send one to another expert, so the median does: a layout
    that a model misreads is wrong for all tokens of two of the three.
    """
    prompt, length, count = 5, 4, 3
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = (torch.arange(prompt + count * length, device=model.device) * 7 + 3) % vocabulary
    first, rest = ids[:prompt], ids[prompt:].view(count, length)
    apart = model.base_model(
        input_ids=torch.cat([first.expand(count, prompt), rest], dim=1), use_cache=False
    ).last_hidden_state[:, prompt:]
    steps = torch.arange(length, device=model.device)
    branch = torch.cat(
        [torch.zeros_like(first), torch.arange(1, count + 1, device=model.device).repeat_interleave(length)]
    )
    together = model.base_model(
        input_ids=ids[None],
        position_ids=torch.cat([torch.arange(prompt, device=model.device), (prompt + steps).repeat(count)])[None],
        attention_mask=attention_mask(model, branch[None]),
        use_cache=False,
    ).last_hidden_state[0, prompt:]
    apart = apart.reshape(together.shape).float()
    gaps = (apart - together.float()).abs().amax(-1) / apart.abs().amax(-1).clamp(min=1e-6)
    return float(gaps.max() if model.dtype == torch.float32 else gaps.median())
