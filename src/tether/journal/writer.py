"""Writes a run directory; a line is whole or absent, and on its way to the disk before the next one begins."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from tether.errors import ConfigError, NonFiniteError, RunDirectoryError
from tether.journal.evaluated import Evaluated, evaluated_to_json
from tether.journal.ledger import LedgerLine, ledger_line_to_json
from tether.journal.schema import (
    CONFIG_FILE,
    EVALS_FILE,
    EVENTS_FILE,
    LEDGER_FILE,
    LINE_FILES,
    PROCESSES_FILE,
    ROLLOUTS_FILE,
    SCHEMA,
    SPANS_FILE,
    Sample,
    event_to_json,
    files_in,
    sample_to_json,
    to_line,
)
from tether.journal.spans import Span, span_to_json
from tether.records import Event


class RunWriter:
    """Makes a new run directory and appends to it; the folder must be new or empty.

    While it is open no other writer gets at the folder: its events are locked, and a process that dies unlocks them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with RunWriter(Path(folder) / "run") as writer:
    ...         writer.config({"run": {"seed": 0}})
    ...         writer.event(Event(event="start", step=0, version=0))
    ...     print((writer.folder / "events.jsonl").read_text(), end="")
    {"schema":1,"event":"start","step":0,"version":0,"metrics":{}}
    """

    def __init__(self, folder: Path | str, *, go_on: bool = False) -> None:
        self.folder = Path(folder)
        if not go_on:
            _make_empty(self.folder)
        self._files: dict[str, _LineFile] = {}
        for name in LINE_FILES:
            try:
                self._files[name] = _LineFile(self.folder / name, is_new=not go_on)
            except RunDirectoryError:
                self.close()
                raise

    @classmethod
    def reopen(cls, folder: Path | str) -> RunWriter:
        """A writer that goes on at the end of what a run directory holds."""
        return cls(folder, go_on=True)

    def cut_back(self, offsets: Mapping[str, int], into: Path) -> None:
        """Shorten the files to these lengths in bytes; what is cut off is kept in a folder, on the disk before."""
        for name, file in self._files.items():
            file.cut_back(offsets[name], into / name)

    def offsets(self) -> dict[str, int]:
        """Lengths of the files in bytes; ``sync`` brings all of it to the disk."""
        return {name: file.length for name, file in self._files.items()}

    def process(self, facts: Mapping[str, Any]) -> None:
        """Append what is known of a process that takes part in the run: role, pid, host, when it began."""
        path = self.folder / PROCESSES_FILE
        try:
            with path.open("ab") as file:
                file.write(to_line({"schema": SCHEMA, **facts}))
        except OSError as error:
            raise RunDirectoryError(f"cannot write to {path}: {_reason(error)}; make room and start again") from error

    def config(self, config: Mapping[str, Any]) -> None:
        """Write the resolved recipe, whole or not at all."""
        try:
            text = json.dumps(config, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        except TypeError as error:
            raise ConfigError(f"the resolved recipe must be plain JSON; {error}") from error
        except ValueError as error:
            raise NonFiniteError(f"the resolved recipe must hold finite numbers only; {error}") from error
        write_whole(self.folder / CONFIG_FILE, text.encode("utf-8", "backslashreplace"))

    def event(self, event: Event) -> None:
        """Append one event."""
        self._append(EVENTS_FILE, event_to_json(event))

    def ledger(self, line: LedgerLine) -> None:
        """Append the line of a rollout that came to its end."""
        self._append(LEDGER_FILE, ledger_line_to_json(line))

    def rollouts(self, samples: Iterable[Sample]) -> None:
        """Append stored samples, one a line."""
        for sample in samples:
            self._append(ROLLOUTS_FILE, sample_to_json(sample))

    def evaluated(self, lines: Iterable[Evaluated]) -> None:
        """Append the problems of an evaluation, one a line."""
        for line in lines:
            self._append(EVALS_FILE, evaluated_to_json(line))

    def span(self, span: Span) -> None:
        """Append what a part of the run did from one moment to another."""
        self._append(SPANS_FILE, span_to_json(span))

    def sync(self) -> None:
        """Wait until everything written so far is on the disk."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        """Sync and close the files; a second call does nothing."""
        files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            with contextlib.suppress(RunDirectoryError):  # the first error is the one to tell
                self.close()

    def _append(self, name: str, obj: Mapping[str, Any]) -> None:
        if name not in self._files:
            raise RunDirectoryError(f"the writer of {self.folder} is closed; a line for {name} comes too late")
        self._files[name].append(to_line(obj))


class _LineFile:
    """A file that holds whole lines only: one ``write`` a line, cut back when a line did not fit.

    After the first line that it could not take it takes none, and tells the first reason each time.
    """

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self.path = path
        self._refusal = ""
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | (os.O_EXCL if is_new else 0), 0o644)
        except OSError as error:
            raise RunDirectoryError(f"cannot create {path}: {_reason(error)}; choose another folder") from error
        try:
            _lock(self._fd, path)
        except RunDirectoryError:
            os.close(self._fd)
            raise
        self.length = os.fstat(self._fd).st_size
        self._counts_links = os.fstat(self._fd).st_nlink > 0  # some network file systems do not

    def cut_back(self, length: int, kept: Path) -> None:
        if self.length < length:
            raise RunDirectoryError(f"{self.path} has {self.length} bytes and cannot be cut back to {length}")
        try:
            if cut := os.pread(self._fd, self.length - length, length):
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_whole(kept, cut)
            os.ftruncate(self._fd, length)
            self.length = length
            self.sync()
        except OSError as error:
            raise RunDirectoryError(f"cannot cut back {self.path}: {_reason(error)}; make room first") from error

    def append(self, line: bytes) -> None:
        if self._refusal:
            raise RunDirectoryError(self._refusal)
        try:
            is_deleted = self._counts_links and os.fstat(self._fd).st_nlink == 0
            if not is_deleted:
                self._write(line)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.length)
            self._refusal = (
                f"cannot write to {self.path}: {_reason(error)}; the lines before are whole. Make room and start again"
            )
            raise RunDirectoryError(self._refusal) from error
        if is_deleted:
            self._refusal = (
                f"a journal stays where it is while its run goes on; {self.path} was deleted, and its lines are lost: "
                "start again with a new --out"
            )
            raise RunDirectoryError(self._refusal)
        self.length += len(line)

    def _write(self, line: bytes) -> None:
        num_written = os.write(self._fd, line)
        if num_written < len(line):  # a disk that fills up takes a part; ask once more, to learn why
            num_written += os.write(self._fd, line[num_written:])
        if num_written < len(line):
            raise OSError(f"only {num_written} of {len(line)} bytes were taken")

    def sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise RunDirectoryError(
                f"cannot bring {self.path} to the disk: {_reason(error)}; make room and start again"
            ) from error

    def close(self) -> None:
        try:
            self.sync()
        finally:
            os.close(self._fd)


def process_facts(role: str) -> dict[str, Any]:
    """What the journal says about the process that calls this."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"role": role, "pid": os.getpid(), "host": socket.gethostname(), "started": now}


def flush(path: Path) -> None:
    """Wait until a file, or the list of a folder's files, is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    A symbolic link stays, and the file that it points to is written; anything else that is no file is left alone.
    """
    target = Path(os.path.realpath(path))
    _refuse_special(path, target)
    beside = target.with_name(f".{target.name}.partial")
    try:
        beside.unlink(missing_ok=True)
        with beside.open("xb") as file:  # a new file, and never one that a link at its place points to
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RunDirectoryError(f"cannot write {path}: {_reason(error)}; nothing was changed there") from error


def _refuse_special(path: Path, target: Path) -> None:
    """A device, a pipe or a folder would be replaced by a file: refuse it."""
    try:
        mode = target.lstat().st_mode
    except OSError:
        return  # there is nothing to lose; if something stands in the way, writing says what
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else")
        raise RunDirectoryError(
            f"only an ordinary file can be replaced; {path} is {kind}: choose the path of a new or an ordinary file"
        )


_KINDS: Final[tuple[tuple[Callable[[int], bool], str], ...]] = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISLNK, "a symbolic link that leads nowhere"),
)


def check_unused(folder: Path) -> None:
    """Refuse a folder that cannot become a run directory; makes nothing."""
    try:
        held = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise RunDirectoryError(f"cannot use the run directory {folder}: {_reason(error)}; choose another") from error
    _refuse_used(folder, held)


def check_unwritten(folder: Path) -> None:
    """Refuse a run directory that a process is writing; makes nothing."""
    with contextlib.suppress(FileNotFoundError), (folder / EVENTS_FILE).open("rb") as file:
        _lock(file.fileno(), folder / EVENTS_FILE)


def _lock(fd: int, path: Path) -> None:
    """Hold a file until it is closed, or its process is dead."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RunDirectoryError(
            f"a run directory has one writer at a time; {path} is being written by another process: wait for it, "
            "or stop it first"
        ) from error
    except OSError:
        pass  # a file system without locks


def _make_empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise RunDirectoryError(
            f"cannot make the run directory {folder}: {_reason(error)}; choose a folder that can be written"
        ) from error
    _refuse_used(folder, held)


def _refuse_used(folder: Path, held: list[str]) -> None:
    if not held:
        return
    what = "holds a run already" if files_in(folder) else f"is not empty ({', '.join(held[:3])})"
    raise RunDirectoryError(f"a run needs a new or empty folder; {folder} {what}: choose another with --out")


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
