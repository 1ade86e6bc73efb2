"""Weights in another number format, in place."""

from __future__ import annotations

import torch
from torch import nn


def convert_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert what ``state_dict`` holds, as loading in that format does; tied weights stay tied.

    ``model.to(dtype)`` also rounds what a model computes from its configuration. Rotary frequencies rounded to
    bfloat16 are up to 0.4 % off, so a trainer that was converted and an engine that was loaded would turn the same
    token by different angles, the more the later it stands.

    >>> layer = nn.Linear(2, 2)
    >>> layer.register_buffer("frequencies", torch.ones(2), persistent=False)
    >>> convert_weights(layer, torch.bfloat16)
    >>> layer.weight.dtype, layer.frequencies.dtype
    (torch.bfloat16, torch.float32)
    """
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
