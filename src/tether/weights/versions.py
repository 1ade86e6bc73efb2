"""What every store asks of a version before it takes it, and how it counts what it took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tether.errors import ConfigError, ModelError
from tether.models.loading import DTYPES
from tether.ports import TRIAL


@dataclass(slots=True)
class Count:
    """Publications that a store has made; versions count updates and skip numbers, publications do not.

    >>> count = Count()
    >>> count.check(8, {"w": torch.ones(1)})
    0
    >>> count.made(8)
    >>> count.check(16, {"w": torch.ones(1)})
    1
    >>> count.check(8, {"w": torch.ones(1)})
    Traceback (most recent call last):
    tether.errors.ModelError: versions must increase from 0; got 8 after 8: publish after an update, once
    """

    newest: int = TRIAL - 1
    """Version published last."""
    number: int = 0
    """Of the next publication."""

    def check(self, version: int, weights: Mapping[str, Tensor]) -> int:
        """Number of the publication; refused are a version that is not newer than the newest, and one of nothing.

        The first may be that of a trial.
        """
        if version <= self.newest:
            raise ModelError(
                f"versions must increase from 0; got {version} after {self.newest}: publish after an update, once"
            )
        if not weights:
            raise ModelError(
                f"a publication must hold tensors; version {version} has none: pass the model's state dict"
            )
        return self.number

    def made(self, version: int) -> None:
        """A version can be fetched from now on; one that failed on the way takes no number."""
        self.newest, self.number = version, self.number + 1


def published_dtype(dtype: str, keep: int) -> torch.dtype:
    """Number format of what a store publishes; refused if it is none that is known, or if nothing would be kept."""
    if dtype not in DTYPES:
        raise ConfigError(f"the published dtype must be one of {', '.join(sorted(DTYPES))}; got {dtype!r}")
    if keep < 1:
        raise ConfigError(f"keep must be at least 1 version; got {keep}")
    return DTYPES[dtype]


def first_names(weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Name -> the first name of the same tensor: tied weights travel once.

    >>> table = torch.ones(4)
    >>> first_names({"embedding": table, "head": table.detach(), "part": table[:2]})
    {'embedding': 'embedding', 'head': 'embedding', 'part': 'part'}
    """
    firsts: dict[tuple[object, ...], str] = {}
    named: dict[str, str] = {}
    for name, tensor in weights.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        named[name] = firsts.setdefault(place, name) if tensor.numel() else name
    return named


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes; a tensor with several names counts once."""
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors.values()}.values())
