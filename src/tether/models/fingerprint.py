"""A short name for a set of weights: two sides that hold the same bytes get the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import torch
from torch import Tensor

WORTH_A_THREAD = 1 << 24
"""Bytes below which starting threads takes longer than hashing."""


def fingerprint(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """SHA-256 over name, dtype, shape and the SHA-256 of the bytes of every tensor, in the order of their names.

    Neither the order of the mapping, nor the device, nor the strides of a tensor matter; every bit of a value does. A
    tensor with several names is hashed once. Large weights are hashed by as many threads as torch may use. With a
    ``dtype`` it is that of the same weights in this format, converted one at a time; integers stay what they are.

    >>> weights = {"a": torch.zeros(2), "b": torch.ones(3, dtype=torch.bfloat16)}
    >>> fingerprint(weights)[:16]
    '42d9a62a122212ac'
    >>> fingerprint(weights) == fingerprint(dict(reversed(weights.items())))
    True
    >>> fingerprint({"a": torch.ones(2)}, torch.bfloat16) == fingerprint({"a": torch.ones(2, dtype=torch.bfloat16)})
    True
    """
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    if sum(tensor.nbytes for tensor in distinct.values()) < WORTH_A_THREAD or torch.get_num_threads() == 1:
        digests = {key: _digest(tensor, dtype) for key, tensor in distinct.items()}
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # hashlib lets other threads run meanwhile
            found = pool.map(_digest, distinct.values(), repeat(dtype))
            digests = dict(zip(distinct, found, strict=True))
    lines = [
        [name, str(_in(tensor, dtype)), list(tensor.shape), digests[id(tensor)]]
        for name, tensor in sorted(tensors.items())
    ]
    return hashlib.sha256(json.dumps(lines).encode()).hexdigest()


def _digest(tensor: Tensor, dtype: torch.dtype | None) -> str:
    flat = tensor.detach().to(_in(tensor, dtype)).contiguous().cpu().reshape(-1)
    return hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()


def _in(tensor: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
