"""Publications as folders that a server reads: whole, checked, and gone when they have been read."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Final

from torch import Tensor

from tether.engines.filed import Filed
from tether.engines.holding import received
from tether.errors import ConfigError, ModelError
from tether.ports import Publication, WeightStore
from tether.weights.directory import TENSORS_FILE

MEMORY: Final = Path("/dev/shm")
"""A folder in memory, where there is one."""
_SPARE: Final = 2
"""Versions that must fit into it."""


class Folders:
    """Takes publications out of a store and puts them where a server finds them.

    Args:
        store: where versions come from.
        filed: gives the tensors the names that files have.
        home: the folder for them, seen by the server at this path; empty for one on this machine, in memory if a
            version fits, else among the temporary files.
    """

    def __init__(self, store: WeightStore, filed: Filed, home: str = "") -> None:
        self._store, self._filed = store, filed
        root = Path(home).expanduser().absolute() if home else None
        if root is None and MEMORY.is_dir():
            root = MEMORY
        try:
            if root is not None:
                root.mkdir(parents=True, exist_ok=True)
            self.home = Path(tempfile.mkdtemp(prefix="tether-weights-", dir=root))
        except OSError as error:
            raise ConfigError(
                f"the folder in which the server finds weights must be one that can be written to: {error}; set "
                "engine.folder to one that it sees too"
            ) from error
        self._may_move = not home
        weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)

    def take(self, publication: Publication) -> tuple[Path, str]:
        """A folder with the tensors of a publication, and the fingerprint of what was received.

        What a store that travels through folders has written itself is read where it lies, if its names are those of
        files already.
        """
        taken, arrived = received(self._store, publication)
        self._filed.check(taken)
        tensors = self._filed(taken)
        if isinstance(publication.where, str) and all(taken.get(name) is t for name, t in tensors.items()):
            there = Path(publication.where)
            if (there / TENSORS_FILE).is_file():
                return there, arrived
        return self._write(publication, tensors), arrived

    def sweep(self, keep: Path) -> None:
        """Remove all of ours but one."""
        for old in self.home.iterdir():
            if old != keep:
                shutil.rmtree(old, ignore_errors=True)

    def _write(self, publication: Publication, tensors: dict[str, Tensor]) -> Path:
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        if self._may_move and shutil.disk_usage(self.home).free < _SPARE * publication.num_bytes:
            self._move()
        folder = self.home / f"v{publication.version:09d}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(plain, folder / "model.safetensors", metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise ModelError(
                f"version {publication.version} must fit the folder that the server reads it from; {self.home} did not "
                f"take its {publication.num_bytes} bytes: {error}; make room, or set engine.folder"
            ) from error
        return folder

    def _move(self) -> None:
        """From memory to the temporary files: there is no room for another version."""
        shutil.rmtree(self.home, ignore_errors=True)
        self.home, self._may_move = Path(tempfile.mkdtemp(prefix="tether-weights-")), False
        weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)
