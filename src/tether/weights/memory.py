"""Versions that travel inside one process."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from tether.errors import ModelError
from tether.models.fingerprint import fingerprint
from tether.ports import Publication
from tether.weights.versions import Count, first_names, published_dtype, size_of


class MemoryStore:
    """A ``WeightStore`` that keeps copies of the last few versions in memory.

    A version becomes visible by one assignment after everything is copied and hashed: it is whole or absent.

    >>> import torch
    >>> store = MemoryStore("bfloat16", keep=1)
    >>> first = store.publish(0, {"w": torch.ones(2)})
    >>> store.fetch(first)["w"].dtype
    torch.bfloat16
    >>> _ = store.publish(8, {"w": torch.zeros(2)})
    >>> store.fetch(first)
    Traceback (most recent call last):
    tether.errors.ModelError: version 0 must still be in the store to be fetched; it holds 8 (keep = 1)
    """

    def __init__(self, dtype: str, keep: int = 2) -> None:
        self._dtype = published_dtype(dtype, keep)
        self._keep = keep
        self._held: dict[int, tuple[Publication, Mapping[str, Tensor]]] = {}
        self._count = Count()

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> Publication:
        """Copy the weights, in the published dtype, and make them visible at once; forget the oldest beyond ``keep``.

        Integer tensors keep their type.
        """
        number = self._count.check(version, weights)
        copies = self._copy(weights)
        publication = Publication(
            version=version, number=number, fingerprint=fingerprint(copies), num_bytes=size_of(copies)
        )
        held = {**self._held, version: (publication, MappingProxyType(copies))}
        self._held = dict(sorted(held.items())[-self._keep :])
        self._count.made(version)
        return publication

    def fetch(self, publication: Publication) -> Mapping[str, Tensor]:
        """The tensors of a publication; they are the store's own, for reading only."""
        if publication.version not in self._held:
            held = ", ".join(map(str, self._held)) or "nothing"
            raise ModelError(
                f"version {publication.version} must still be in the store to be fetched; "
                f"it holds {held} (keep = {self._keep})"
            )
        known, tensors = self._held[publication.version]
        if known.fingerprint != publication.fingerprint:
            raise ModelError(
                f"version {publication.version} must be the one that was published here; the store has fingerprint "
                f"{known.fingerprint}, asked for was {publication.fingerprint}: fetch with the publisher's record"
            )
        return tensors

    def _copy(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Detached, contiguous copies; names that share one tensor (tied weights) share one copy."""
        copies: dict[str, Tensor] = {}
        for name, first in first_names(weights).items():
            tensor = weights[name]
            dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
            copies[name] = (
                copies[first]
                if first in copies
                else tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
            )
        return copies
