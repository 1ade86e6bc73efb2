"""The key-value cache of a batch: rows join and leave it, and it can be plain tensors, for a checkpoint.

Columns are right-aligned: the newest key of every row stands in the last one, what a row does not see on the left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tether.errors import ModelError

_REMADE = ("dtype", "device")
"""What a layer sets by itself when it meets its first keys."""


def join_caches(cache: Any, other: Any) -> None:
    """Append the rows of ``other``; the narrower of the two gets unseen columns on its left."""
    for mine, theirs in zip(cache.layers, other.layers, strict=True):
        _check_known(mine)
        mine.keys, mine.values = _stacked(mine.keys, theirs.keys), _stacked(mine.values, theirs.values)
        if mine.is_sliding:
            mine.cumulative_length = max(mine.cumulative_length, theirs.cumulative_length)


def cut_cache(cache: Any, rows: Tensor, columns: int) -> None:
    """Keep the given rows, without the first ``columns``, which none of them sees."""
    for layer in cache.layers:
        _check_known(layer)
        first = columns
        if layer.is_sliding:  # it holds the last columns only: of those that are gone, some have left already
            layer.cumulative_length -= columns
            first = max(0, layer.keys.shape[2] - layer.cumulative_length)
        layer.keys, layer.values = layer.keys[:, :, first:][rows], layer.values[:, :, first:][rows]


def cache_state(cache: Any) -> list[dict[str, Any]]:
    """Every layer of a transformers cache: its tensors, copied to the host, and its numbers.

    A layer that keeps anything else is refused: what is left out here would be missing after a restore.
    """
    return [{name: _plain(layer, name) for name in vars(layer) if name not in _REMADE} for layer in cache.layers]


def refill_cache(cache: Any, state: Sequence[Mapping[str, Any]], device: torch.device) -> None:
    """Put what ``cache_state`` gave into a fresh cache of the same model."""
    kinds = [(len(state), set(s)) for s in state]
    fresh = [(len(cache.layers), {name for name in vars(layer) if name not in _REMADE}) for layer in cache.layers]
    if kinds != fresh:
        raise ModelError(
            f"a saved batch continues in the model it was saved from; its cache has {len(state)} layers, the model "
            f"{len(cache.layers)}, or they keep other things: resume with the model and the transformers of the run"
        )
    for layer, saved in zip(cache.layers, state, strict=True):
        if saved["is_initialized"]:
            keys, values = saved["keys"].to(device), saved["values"].to(device)
            layer.lazy_initialization(keys, values)
        for name, value in saved.items():
            setattr(layer, name, value.to(device, copy=True) if isinstance(value, Tensor) else value)


def host_copy(tensor: Tensor) -> Tensor:
    """A copy on the host that shares nothing: of a view, only what it shows."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor)


def _stacked(upper: Tensor, lower: Tensor) -> Tensor:
    rows, heads, _, size = upper.shape
    width = max(upper.shape[2], lower.shape[2])
    both = upper.new_zeros(rows + len(lower), heads, width, size)
    both[:rows, :, width - upper.shape[2] :] = upper
    both[rows:, :, width - lower.shape[2] :] = lower
    return both


def _check_known(layer: Any) -> None:
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
        raise ModelError(
            f"rows join and leave a cache of keys and values; this model has a {type(layer).__name__}: "
            "take a model with full or sliding attention"
        )


def _plain(layer: Any, name: str) -> Any:
    value = getattr(layer, name)
    if isinstance(value, Tensor):
        return host_copy(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ModelError(
        f"a batch is saved with its whole key-value cache; {type(layer).__name__} keeps {name!r}, "
        f"{type(value).__name__}, which is no tensor and no number: take a model with full or sliding attention"
    )
