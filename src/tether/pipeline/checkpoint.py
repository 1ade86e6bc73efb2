"""Checkpoints: folders from which a run goes on, each whole or not at all.

``checkpoints/step-N/`` is a plain Hugging Face folder of the weights, with ``state/`` beside them: optimizer, the
weights that the engine holds, what the loops hold, and a manifest with the hash of every file and the lengths that
the journal had.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.errors import ConfigError, ResumeError, TetherError
from tether.journal.schema import MODEL_FOLDER
from tether.journal.writer import flush

CHECKPOINTS_FOLDER = "checkpoints"
STATE_FOLDER = "state"
MANIFEST_FILE = "manifest.json"
OURS = re.compile(r"step-[0-9]{6,}")
"""Names of checkpoints."""
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """The ``[checkpoint]`` table."""

    every: int = 50
    """Steps between checkpoints; 0 makes one only when the run is asked to stop."""
    keep: int = 2
    """How many are kept, the newest."""

    def __post_init__(self) -> None:
        if self.every < 0 or self.keep < 1:
            raise ConfigError(f"checkpoint needs every >= 0 and keep >= 1; got every {self.every}, keep {self.keep}")

    def due(self, step: int) -> bool:
        """True if a checkpoint follows this step."""
        return self.every > 0 and step % self.every == 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A folder that was whole when it was looked at."""

    folder: Path
    step: int
    offsets: Mapping[str, int]
    """Lengths of the journal's files, in bytes, when it was made."""

    @property
    def state(self) -> Path:
        """Where everything but the weights lies."""
        return self.folder / STATE_FOLDER


class Checkpoints:
    """The checkpoints of one run directory."""

    def __init__(self, run: Path) -> None:
        self._home = run / CHECKPOINTS_FOLDER
        self.model = run / MODEL_FOLDER
        """Where the final weights go."""

    @property
    def steps(self) -> list[int]:
        """After which there is one, whole or not."""
        return [_step_of(folder) for folder in self._folders()]

    async def save(self, step: int, write: Callable[[Path], Awaitable[Mapping[str, int]]], *, keep: int) -> Path:
        """``checkpoints/step-N/`` with what ``write`` puts into a new folder; older ones beyond ``keep`` go after it.

        ``write`` returns the lengths of the journal's files. The folder gets its name when every byte is on the disk.
        """
        target = self._home / f"step-{step:06d}"
        beside = self._home / f".{target.name}.partial"
        try:
            self._home.mkdir(exist_ok=True)
            self._sweep()
            offsets = await write(beside)
            _seal(beside, step, offsets)
            if target.exists():
                shutil.rmtree(target)  # made before a rollback; the run has come here again
            beside.rename(target)
            flush(self._home)
            for old in self._folders()[:-keep]:
                shutil.rmtree(old)
        except (OSError, RuntimeError) as error:  # torch raises the latter when a disk is full
            if isinstance(error, TetherError):
                raise
            known = error.strerror if isinstance(error, OSError) else None
            reason = known or "torch could not write all of it, as when a disk is full"
            raise ResumeError(
                f"cannot write the checkpoint of step {step} to {self._home}: {reason}; the earlier ones are whole: "
                "make room, then go on with tether train --resume"
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return target

    def newest(self, told: Callable[[str], object], lengths: Mapping[str, int]) -> Checkpoint | None:
        """The newest that is whole and to which a journal of these lengths can be cut back; the others are told of
        and left where they are."""
        for folder in reversed(self._folders()):
            try:
                return _opened(folder, lengths)
            except ResumeError as error:
                told(str(error))
        return None

    def later_than(self, step: int) -> Iterator[Path]:
        """Folders of later steps, and what is left of checkpoints that were never whole."""
        self._sweep()
        for folder in self._folders():
            if _step_of(folder) > step:
                yield folder

    def _folders(self) -> list[Path]:
        """Ours, by step; whatever else somebody keeps there is not touched."""
        return sorted((f for f in self._home.glob("step-*") if OURS.fullmatch(f.name) and f.is_dir()), key=_step_of)

    def _sweep(self) -> None:
        for rest in self._home.glob(".*step-*.partial*"):
            shutil.rmtree(rest, ignore_errors=True)


def _step_of(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def _seal(folder: Path, step: int, offsets: Mapping[str, int]) -> None:
    """Hash every file, write the manifest, bring all of it to the disk."""
    files = {path.relative_to(folder).as_posix(): _facts(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    manifest = {"schema": SCHEMA, "step": step, "offsets": dict(offsets), "files": files}
    (folder / STATE_FOLDER / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in sorted(folder.rglob("*"), reverse=True):
        flush(path)
    flush(folder)


def _opened(folder: Path, lengths: Mapping[str, int]) -> Checkpoint:
    """A checkpoint whose files are those of its manifest, and whose journal is still there."""
    path = folder / STATE_FOLDER / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_bytes())
        files, step = manifest["files"], int(manifest["step"])
        offsets = {name: int(manifest["offsets"][name]) for name in lengths}
        if manifest["schema"] != SCHEMA:
            raise ResumeError(f"checkpoint {folder} is skipped: it has schema {manifest['schema']}, not {SCHEMA}")
        for name, facts in files.items():
            if not (folder / name).is_file() or _facts(folder / name) != facts:
                raise ResumeError(f"checkpoint {folder} is skipped: {name} is not the file that was written")
        for name, length in lengths.items():
            if length < offsets[name]:
                raise ResumeError(f"checkpoint {folder} is skipped: {name} has lost lines that it had then")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResumeError(f"checkpoint {folder} is skipped: it has no readable {MANIFEST_FILE}") from error
    return Checkpoint(folder, step, offsets)


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
