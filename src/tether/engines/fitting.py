"""Whether published weights are those of an engine's model, before any of them is copied."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tether.errors import ModelError


def check_fits(own: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> None:
    """Raise ``ModelError`` unless every tensor that the model publishes is met, in its shape, and no other came.

    Tied weights are one tensor with several names: one of them is enough, and all that come must agree. ``own`` may be
    of a model without memory (device ``meta``).

    >>> check_fits({"a": torch.zeros(2)}, {"a": torch.ones(2)})
    >>> check_fits({"a": torch.zeros(2)}, {"b": torch.ones(2)})
    Traceback (most recent call last):
    tether.errors.ModelError: published weights must fit the engine's model; unexpected 'b'; missing 'a': publish the \
state dict of the model the engine was opened with
    """
    names: dict[int, list[str]] = {}
    for name, tensor in own.items():
        names.setdefault(id(tensor), []).append(name)
    wrong = [f"unexpected {name!r}" for name in received if name not in own]
    wrong += [f"missing {tied[0]!r}" for tied in names.values() if not any(n in received for n in tied)]
    wrong += [
        f"{name!r} has shape {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
        for name, tensor in received.items()
        if name in own and tensor.shape != own[name].shape
    ]
    for tied in names.values():
        first, *rest = [n for n in tied if n in received] or [""]
        wrong += [f"{first!r} and {n!r} are tied but differ" for n in rest if not _same(received, first, n)]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ModelError(
            f"published weights must fit the engine's model; {'; '.join(wrong[:5])}{more}: "
            "publish the state dict of the model the engine was opened with"
        )


def _same(tensors: Mapping[str, Tensor], one: str, other: str) -> bool:
    return tensors[one] is tensors[other] or torch.equal(tensors[one], tensors[other])
