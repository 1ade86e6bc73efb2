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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tether.errors import ConfigError, ModelError, ResumeError, TetherError
from tether.journal.schema import MODEL_FOLDER
from tether.journal.writer import flush
from tether.pipeline.capture import STATE_FOLDER
from tether.pipeline.writing import Write

CHECKPOINTS_FOLDER = "checkpoints"
MANIFEST_FILE = "manifest.json"
OURS = re.compile(r"step-[0-9]{6,}")
"""Names of checkpoints."""
SCHEMA = 3
"""1: before rollouts were streamed. 2: before evaluations were written down problem by problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """The ``[checkpoint]`` table."""

    every: int = 50
    """Steps between checkpoints; 0 makes one only when the run is asked to stop."""
    keep: int = 2
    """How many are kept, the newest."""
    partials: Literal["keep", "restart"] = "keep"
    """What becomes on resume of rollouts that were under way: what was sampled of them is kept and gone on with, or
    they ``restart`` from their prompts, under the same ids. Only where it is kept can a resumed run be the same run."""

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

    def put(self, write: Write, *, step: int, run: Write, offsets: Mapping[str, int], keep: int) -> None:
        """Make ``checkpoints/step-N/``: ``write`` makes a new folder, and ``run`` adds to the state in it; older
        checkpoints beyond ``keep`` go after it.

        ``offsets`` are the lengths of the journal's files. The folder gets its name when every byte is on the disk.
        """
        target = self._home / f"step-{step:06d}"
        beside = self._home / f".{target.name}.partial"
        try:
            self._home.mkdir(exist_ok=True)
            self._sweep()
            write(beside)
            run(beside / STATE_FOLDER)
            _seal(beside, step, offsets)
            if target.exists():
                shutil.rmtree(target)  # made before a rollback; the run has come here again
            beside.rename(target)
            flush(self._home)
            for old in self._folders()[:-keep]:
                shutil.rmtree(old)
        except (OSError, RuntimeError, ModelError) as error:  # torch and safetensors have errors of their own
            if isinstance(error, TetherError) and not isinstance(error, ModelError):
                raise
            cause = error.__cause__ or error
            known = cause.strerror if isinstance(cause, OSError) else None
            reason = known or "not all of it could be written, as when a disk is full"
            raise ResumeError(
                f"cannot write the checkpoint of step {step} to {self._home}: {reason}; the earlier ones are whole: "
                "make room, then go on with tether train --resume"
            ) from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)

    def newest(self, told: Callable[[str], object], lengths: Mapping[str, int]) -> Checkpoint | None:
        """The newest that is whole and to which a journal of these lengths can be cut back; the others are told of
        and left where they are.

        Raises ``ResumeError`` if there is none, but one that another version of tether can read.
        """
        foreign = None
        for folder in reversed(self._folders()):
            try:
                return _opened(folder, lengths)
            except _ForeignError as error:
                foreign = foreign or error
                told(str(error))
            except ResumeError as error:
                told(str(error))
        if foreign is not None:
            raise ResumeError(
                f"no checkpoint can be read by this version of tether: {foreign}; resume with the version that wrote "
                "it, or start a new run"
            )
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


class _ForeignError(ResumeError):
    """A checkpoint of another version."""


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
        if manifest["schema"] != SCHEMA:
            raise _ForeignError(f"checkpoint {folder} is skipped: it has schema {manifest['schema']}, not {SCHEMA}")
        files, step = manifest["files"], int(manifest["step"])
        offsets = {name: int(manifest["offsets"][name]) for name in lengths}
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
