"""Versions that travel inside one process."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from tether.errors import ConfigError, ModelError
from tether.models.fingerprint import fingerprint
from tether.models.loading import DTYPES
from tether.ports import Publication
from tether.weights.versions import check_new


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
        if dtype not in DTYPES:
            raise ConfigError(f"the published dtype must be one of {', '.join(sorted(DTYPES))}; got {dtype!r}")
        if keep < 1:
            raise ConfigError(f"keep must be at least 1 version; got {keep}")
        self._dtype = DTYPES[dtype]
        self._keep = keep
        self._held: dict[int, tuple[Publication, Mapping[str, Tensor]]] = {}
        self._newest = -1

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> Publication:
        """Copy the weights, in the published dtype, and make them visible at once; forget the oldest beyond ``keep``.

        Integer tensors keep their type.
        """
        check_new(version, self._newest, weights)
        copies = self._copy(weights)
        publication = Publication(
            version=version,
            fingerprint=fingerprint(copies),
            num_bytes=sum(t.numel() * t.element_size() for t in {id(t): t for t in copies.values()}.values()),
        )
        held = {**self._held, version: (publication, MappingProxyType(copies))}
        self._held = dict(sorted(held.items())[-self._keep :])
        self._newest = version
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
        made: dict[tuple[object, ...], Tensor] = {}
        copies: dict[str, Tensor] = {}
        for name, tensor in weights.items():
            dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
            place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if tensor.numel() == 0 or place not in made:
                made[place] = tensor.detach().to(dtype, copy=True, memory_format=torch.contiguous_format)
            copies[name] = made[place]
        return copies
