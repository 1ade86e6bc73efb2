"""Long chains of operations, a stretch of tokens at a time: on a CPU what a stretch makes stays in the cache.

Only for what has no gradient, and where no token needs another: a stretch ends anywhere, also inside a response.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Shaped
from torch import Tensor

CPU_STRETCH, STRETCH = 1 << 15, 1 << 24
"""Numbers of the widest tensor in a stretch: what stays in a CPU's cache and torch leaves to one thread (of more, every
small operation waits for all threads), and what fills any other device."""


def stretches(*columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Tensors ``[T]`` or ``[T, K]``, cut alike.

    >>> [[x.tolist() for x in each] for each in stretches(torch.tensor([1, 2]), torch.tensor([3, 4]))]
    [[[1, 2], [3, 4]]]
    """
    width = max(1, *(column.shape[1:].numel() for column in columns))
    length = (CPU_STRETCH if columns[0].device.type == "cpu" else STRETCH) // width
    if len(columns[0]) <= length:  # most batches of a run, where a split costs as much as an operation
        return iter((columns,))
    return zip(*(torch.split(column, length) for column in columns), strict=True)


def in_stretches(function: Callable[..., Shaped[Tensor, "_"]], *columns: Tensor) -> Shaped[Tensor, "T"]:
    """``function(*columns)``, which gives a number a token.

    >>> in_stretches(torch.maximum, torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0]))
    tensor([3., 2.])
    """
    return torch.cat([function(*each) for each in stretches(*columns)])
