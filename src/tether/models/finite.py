"""Weights that are numbers: looked at where they are read, published and saved."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tether.errors import NonFiniteError


def check_finite_weights(weights: Mapping[str, Tensor], what: str) -> None:
    """Refuse weights of which any is NaN or infinite, naming the first tensor; one wait for the device.

    >>> check_finite_weights({"head": torch.tensor([1.0, float("nan")])}, "the model to be saved")
    Traceback (most recent call last):
    tether.errors.NonFiniteError: weights must be finite; in the model to be saved 'head' has 1 of 2 that are not: \
lower trainer.lr or trainer.weight_decay, or take other weights
    """
    named = [(name, tensor) for name, tensor in weights.items() if tensor.is_floating_point()]
    if not named or bool(torch.stack([tensor.isfinite().all() for _, tensor in named]).all()):
        return
    name, tensor = next((name, tensor) for name, tensor in named if not bool(tensor.isfinite().all()))
    bad = int((~tensor.isfinite()).sum())
    raise NonFiniteError(
        f"weights must be finite; in {what} {name!r} has {bad} of {tensor.numel()} that are not: lower trainer.lr or "
        "trainer.weight_decay, or take other weights"
    )
