"""What every store asks of a version before it takes it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tether.errors import ModelError


def check_new(version: int, newest: int, weights: Mapping[str, Tensor]) -> None:
    """Refuse a version that is not newer than the newest, or that holds nothing.

    >>> check_new(8, 8, {})
    Traceback (most recent call last):
    tether.errors.ModelError: versions must increase from 0; got 8 after 8: publish after an update, once
    """
    if version <= newest:
        raise ModelError(f"versions must increase from 0; got {version} after {newest}: publish after an update, once")
    if not weights:
        raise ModelError(f"a publication must hold tensors; version {version} has none: pass the model's state dict")
