"""Sets of ids as bits on the device, and as lists of ids on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from tether.records import Ints, KeptSets

_GATHER = 0x0102040810204080
"""Times eight bytes of 0 or 1, read as one number: the highest byte of the product has them as its bits."""


def as_bits(mask: Tensor) -> Tensor:
    """``[B, V]`` of booleans to ``[B, ceil(V / 8)]`` bytes, the first id in the lowest bit.

    >>> as_bits(torch.tensor([[True, False, True] + [False] * 5 + [True]])).tolist()
    [[5, 1]]
    """
    whole = pad(mask, (0, -mask.shape[1] % 8)).contiguous()
    return ((whole.view(torch.int64) * _GATHER) >> 56).to(torch.uint8)


def listed(bits: NDArray[np.uint8]) -> tuple[Ints, NDArray[np.int64]]:
    """``[L, ceil(V / 8)]`` bytes to the ids of all sets, ascending within each, and the size ``[L]`` of each.

    >>> ids, sizes = listed(np.array([[5, 1], [2, 0]], np.uint8))
    >>> ids.tolist(), sizes.tolist()
    ([0, 2, 8, 1], [3, 1])
    """
    token, ids = np.nonzero(np.unpackbits(bits, axis=1, bitorder="little"))
    return ids.astype(np.int32), np.bincount(token, minlength=len(bits)).astype(np.int64)


def sets_of(ids: Sequence[Ints], sizes: NDArray[np.int64]) -> KeptSets:
    """Sets laid end to end, from pieces of their ids and the size of each set."""
    starts = np.concatenate([np.zeros(1, np.int64), sizes.cumsum(dtype=np.int64)])
    return KeptSets(ids=np.concatenate([np.empty(0, np.int32), *ids]), starts=starts)
