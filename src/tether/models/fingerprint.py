"""A short name for a set of weights: two sides that hold the same bytes get the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all tensors, in the order of their names.

    Neither the order of the mapping, nor the device, nor the strides of a tensor matter; every bit of a value does.

    >>> weights = {"a": torch.zeros(2), "b": torch.ones(3, dtype=torch.bfloat16)}
    >>> fingerprint(weights)[:16]
    '5684fb7cf55a65ad'
    >>> fingerprint(weights) == fingerprint(dict(reversed(weights.items())))
    True
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        flat = tensor.contiguous().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
