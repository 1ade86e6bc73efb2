"""Versions that travel through Ray's object store: written once to shared memory, read there without a copy."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.errors import ConfigError, ModelError
from tether.models.fingerprint import fingerprint
from tether.ports import Publication
from tether.weights.versions import Count, first_names, published_dtype

Stored = tuple[str, NDArray[Any]]
"""A tensor in the object store: the name of its dtype, and its bytes as an array of its shape."""
NO_NUMPY = {torch.bfloat16: torch.uint16}
"""Dtypes that numpy lacks, and one of the same size that it has."""


class RayStore:
    """A ``WeightStore`` whose versions lie in the object store of the process that publishes.

    ``publish`` is called in the trainer's process, ``fetch`` there or in any other: a publication carries the
    reference to its object in ``where``. An object can be seen only when it is sealed, so a version is whole or
    absent. The store forgets all but the last ``keep`` versions; an older one lives on while somebody holds its
    publication, then its memory is free again.

    Args:
        dtype: of the published weights.
        limit_bytes: what all versions together may take; ``keep`` of them and a new one must fit.
        keep: versions that are kept.
    """

    def __init__(self, dtype: str, *, limit_bytes: int, keep: int = 2) -> None:
        self._dtype = published_dtype(dtype, keep)
        self._limit = limit_bytes
        self._held: deque[Any] = deque(maxlen=keep)
        self._keep = keep
        self._count = Count()

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> Publication:
        """Put the weights, in the published dtype, into the object store; forget the oldest beyond ``keep``.

        Weights that have this dtype already and lie in ordinary memory are copied once, into shared memory. The
        fingerprint is that of the bytes in the object store.
        """
        import ray

        number = self._count.check(version, weights)
        arrays = self._arrays(weights)
        num_bytes = sum(array.nbytes for array in {id(array): array for _, array in arrays.values()}.values())
        if (needed := num_bytes * (self._keep + 1)) > self._limit:
            raise ConfigError(
                f"the object store must hold {self._keep + 1} versions of the weights, {needed} bytes; it has "
                f"{self._limit}: raise placement.object_store_bytes"
            )
        where: Any = ray.put(arrays)
        del arrays
        publication = Publication(
            version=version,
            number=number,
            fingerprint=fingerprint(_tensors(ray.get(where))),
            num_bytes=num_bytes,
            where=where,
        )
        self._held.append(where)
        self._count.made(version)
        return publication

    def fetch(self, publication: Publication) -> Mapping[str, Tensor]:
        """The tensors of a publication, in shared memory: for reading only."""
        import ray

        if publication.where is None:
            raise ModelError(
                f"version {publication.version} was not published through Ray, so it cannot be found; publish with "
                "the store that fetches"
            )
        try:
            return _tensors(ray.get(publication.where))
        except ray.exceptions.ObjectLostError as error:
            raise ModelError(
                f"version {publication.version} must still be in the object store to be fetched; the process that "
                "published it is gone"
            ) from error

    def _arrays(self, weights: Mapping[str, Tensor]) -> dict[str, Stored]:
        """Arrays over the tensors' own memory where possible; names that share one tensor share one array."""
        arrays: dict[str, Stored] = {}
        for name, first in first_names(weights).items():
            if first in arrays:
                arrays[name] = arrays[first]
                continue
            tensor = weights[name]
            dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
            plain = tensor.detach().to(device="cpu", dtype=dtype).contiguous()
            array = plain.view(NO_NUMPY.get(dtype, dtype)).numpy()
            arrays[name] = (str(dtype).removeprefix("torch."), array)
        return arrays


def _tensors(arrays: Mapping[str, Stored]) -> dict[str, Tensor]:
    """Tensors over the same memory; an array with several names is one tensor."""
    made: dict[int, Tensor] = {}
    for dtype, array in arrays.values():
        if id(array) not in made:
            with warnings.catch_warnings():
                # shared memory is for reading, which torch cannot express and says once
                warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
                made[id(array)] = torch.from_numpy(array).view(getattr(torch, dtype))
    return {name: made[id(array)] for name, (_, array) in arrays.items()}
