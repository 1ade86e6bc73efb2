"""Versions that travel through a folder that all processes see: on this disk, or on one that other nodes share."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from tether.errors import ModelError
from tether.journal.writer import flush
from tether.models.fingerprint import fingerprint
from tether.ports import Publication
from tether.weights.versions import Count, first_names, published_dtype, size_of

TENSORS_FILE = "weights.safetensors"
MANIFEST_FILE = "manifest.json"
LOCK_FILE = ".publisher"
WHOLE = re.compile(r"v-?[0-9]{8,}")
"""Names of versions that can be fetched."""
REST = re.compile(r"\.v-?[0-9]{8,}\.(partial|gone)")
"""Names of those that are being written or removed."""
SCHEMA: Final = 1


class DirectoryStore:
    """A ``WeightStore`` whose versions are folders, each with a safetensors file and a manifest.

    ``publish`` is called in one process, ``fetch`` there or in any that sees the folder: a publication carries the
    path of its version in ``where``. A version gets its name when every byte of it is on the disk, and loses it before
    the first byte goes, so it is whole or absent. What arrived is held against the fingerprint, byte by byte.

    A copy of a store, in another process, is for fetching. The first publication removes what an earlier publisher
    left in the folder; while one lives no other can publish there, where the file system has locks.

    Args:
        folder: where the versions lie; made at the first publication.
        dtype: of the published weights.
        keep: versions that are kept, the newest.

    >>> import tempfile, torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     published = DirectoryStore(folder, "bfloat16").publish(8, {"w": torch.ones(2)})
    ...     fetched = DirectoryStore(folder, "bfloat16").fetch(published)
    >>> fetched["w"].dtype, Path(published.where).name
    (torch.bfloat16, 'v000000008')
    """

    def __init__(self, folder: str | Path, dtype: str, *, keep: int = 2) -> None:
        self._home = Path(folder).expanduser().absolute()
        self._name = dtype
        self._dtype = published_dtype(dtype, keep)
        self._keep = keep
        self._count = Count()
        self._is_publisher = False

    def __reduce__(self) -> tuple[Callable[..., DirectoryStore], tuple[Path, str, int]]:
        return _reopened, (self._home, self._name, self._keep)

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> Publication:
        """Write the weights, in the published dtype, and make them visible at once; remove the oldest beyond ``keep``.

        Integer tensors keep their type. A version that could not be written leaves nothing behind, and those before
        stay as they were.
        """
        from safetensors import SafetensorError

        number = self._count.check(version, weights)
        tensors = self._converted(weights)
        target = self._home / f"v{version:09d}"
        publication = Publication(
            version=version,
            number=number,
            fingerprint=fingerprint(tensors),
            num_bytes=size_of(tensors),
            where=str(target),
        )
        partial = self._home / f".{target.name}.partial"
        try:
            self._prepare()
            _write(partial, tensors, _manifest(publication, first_names(weights), self._name))
            partial.rename(target)
            flush(self._home)
        except (OSError, SafetensorError) as error:  # the latter when a disk is full
            raise ModelError(
                f"version {version} of the weights must fit the folder through which they travel; {self._home} did not "
                f"take its {publication.num_bytes} bytes: {error}; the versions before are whole: make room there for "
                f"{self._keep + 1} versions, or choose another folder"
            ) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)  # gone already if it was renamed
        self._count.made(version)
        for old in _found(self._home, WHOLE)[: -self._keep]:
            _remove(old)
        return publication

    def fetch(self, publication: Publication) -> Mapping[str, Tensor]:
        """The tensors of a publication, read into memory: the reader's own.

        They are read and not mapped: the memory of a mapped file can vanish with the file where a file system is
        shared, and whoever then reads it is killed.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not isinstance(publication.where, str):
            raise ModelError(
                f"version {publication.version} was not published through a folder, so it cannot be found; publish "
                "with the store that fetches"
            )
        place = Path(publication.where)
        try:
            manifest = json.loads((place / MANIFEST_FILE).read_bytes())
            _check_record(publication, manifest)
            held = load_file(place / TENSORS_FILE, backend="pread")
            tensors = {name: held[first] for name, first in manifest["names"].items()}
        except OSError as error:
            names = ", ".join(str(_version_of(folder)) for folder in _found(place.parent, WHOLE)) or "nothing"
            raise ModelError(
                f"version {publication.version} must still be in its folder to be fetched; {place.parent} holds "
                f"{names} (keep = {self._keep}): fetch sooner, or let every process see the folder at this path"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(
                f"version {publication.version} must be as it was published; the files in {place} cannot be read: "
                f"{error}; publish again"
            ) from error
        arrived = fingerprint(tensors)
        if arrived != publication.fingerprint:
            raise ModelError(
                f"version {publication.version} must arrive as it was published; its fingerprint is "
                f"{publication.fingerprint}, that of what lies in {place} is {arrived}: publish again"
            )
        return tensors

    def _converted(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """In ordinary memory and in the published dtype, where possible the tensors' own; tied ones are one tensor.

        Views of one memory, which a file cannot hold, get a copy each.
        """
        converted: dict[str, Tensor] = {}
        taken: set[int] = set()
        for name, first in first_names(weights).items():
            if first in converted:
                converted[name] = converted[first]
                continue
            tensor = weights[name].detach()
            dtype = self._dtype if tensor.is_floating_point() else tensor.dtype
            plain = tensor.to(device="cpu", dtype=dtype).contiguous()
            memory = plain.untyped_storage().data_ptr()
            converted[name] = plain.clone() if memory in taken else plain
            taken.add(memory)
        return converted

    def _prepare(self) -> None:
        """A folder of this store's own, without what was never whole; before the first version, without any."""
        self._home.mkdir(parents=True, exist_ok=True)
        if not self._is_publisher:
            self._lock()
            self._is_publisher = True
            for old in _found(self._home, WHOLE):
                _remove(old)
        for rest in _found(self._home, REST):
            shutil.rmtree(rest, ignore_errors=True)

    def _lock(self) -> None:
        """Held until this store is gone, or its process is dead."""
        fd = os.open(self._home / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise ModelError(
                f"weights travel through a folder that one process publishes to; {self._home} is in use by another: "
                "wait for it, or choose another folder"
            ) from error
        except OSError:
            pass  # a file system without locks
        weakref.finalize(self, os.close, fd)


def _reopened(folder: Path, dtype: str, keep: int) -> DirectoryStore:
    return DirectoryStore(folder, dtype, keep=keep)


def _manifest(publication: Publication, names: Mapping[str, str], dtype: str) -> dict[str, Any]:
    """All that must be known of a version; ``names`` says under which name the file holds each tensor."""
    return {"schema": SCHEMA, **_record(publication), "dtype": dtype, "names": dict(names)}


def _record(publication: Publication) -> dict[str, Any]:
    return {name: getattr(publication, name) for name in ("version", "number", "fingerprint", "num_bytes")}


def _check_record(publication: Publication, manifest: Mapping[str, Any]) -> None:
    if manifest["schema"] != SCHEMA:
        raise ModelError(
            f"versions are read in schema {SCHEMA}; version {publication.version} has schema {manifest['schema']}: "
            "use the same release of tether in every process"
        )
    expected = _record(publication)
    for name, value in expected.items():
        if manifest[name] != value:
            raise ModelError(
                f"version {publication.version} must be the one that was published here; its folder has {name} "
                f"{manifest[name]}, asked for was {value}: fetch with the publisher's record"
            )


def _write(folder: Path, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Files of a version, on the disk when this returns."""
    from safetensors.torch import save_file

    folder.mkdir()
    save_file({first: tensors[first] for first in set(manifest["names"].values())}, folder / TENSORS_FILE)
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest), encoding="utf-8")
    for path in (folder / TENSORS_FILE, folder / MANIFEST_FILE, folder):
        flush(path)


def _found(home: Path, names: re.Pattern[str]) -> list[Path]:
    """Ours by name, oldest version first; whatever else lies there is not touched."""
    try:
        return sorted((f for f in home.iterdir() if names.fullmatch(f.name)), key=lambda f: (len(f.name), f.name))
    except OSError:
        return []


def _version_of(folder: Path) -> int:
    return int(folder.name.removeprefix("v"))


def _remove(folder: Path) -> None:
    """Take its name first, so that no reader finds a part of it; a rest that stays is swept with the next version."""
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    try:
        folder.rename(gone)
    except OSError:
        return  # somebody else was faster
    shutil.rmtree(gone, ignore_errors=True)
