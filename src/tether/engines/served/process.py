"""Where a server comes from: one that we start and end, or one that runs already."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tether.errors import ProcessLostError

_LOG = logging.getLogger(__name__)
_TOLD_EVERY_S: Final = 10.0
_LOOK_S: Final = 0.25
_END_S: Final = 15.0
"""Longest time that the guard takes to end a server."""
_TAIL: Final = 30
"""Lines of a server's log that an error shows."""
_NAMED: Final = 3
"""Lines before those that are shown because they name an error: the first is the cause, the last its consequences."""
_WHOLE: Final = 5000
_ERROR: Final = re.compile(r"\b[A-Z]\w*(Error|Exception): ")
Alive = Callable[[], Awaitable[bool]]


@runtime_checkable
class Server(Protocol):
    """Somewhere to send questions."""

    @property
    def url(self) -> str:
        """Where."""
        ...

    @property
    def who(self) -> str:
        """What messages call it."""
        ...

    async def ready(self, is_alive: Alive) -> None:
        """Wait until it answers; start it anew if it is gone. ``ProcessLostError`` if that takes too long."""
        ...

    def end(self) -> None:
        """It is not to be trusted any more: begin to end it."""
        ...

    def gone(self) -> None:
        """Wait until one that was ended is gone."""
        ...


class Running:
    """A server that somebody else started, and ends."""

    def __init__(self, url: str, start_s: float) -> None:
        self.url = url
        self._start_s = start_s

    @property
    def who(self) -> str:
        """What messages call it."""
        return f"the server at {self.url}"

    async def ready(self, is_alive: Alive) -> None:
        """Wait until it answers."""
        began = time.monotonic()
        while not await is_alive():
            if time.monotonic() - began > self._start_s:
                raise ProcessLostError(f"{self.who} did not answer within engine.start_s = {self._start_s:g} seconds")
            await asyncio.sleep(_LOOK_S)

    def end(self) -> None:
        """Not ours to end."""

    def gone(self) -> None:
        """Not ours to wait for."""


class Own:
    """A server in a process group of its own, which ends with this process, however that ends.

    Args:
        command: what to run, given a port of this machine that is free.
        environment: its variables, beside those of this process.
        start_s: longest time until it answers.
        weights: folder that goes with it.
    """

    def __init__(
        self, command: Callable[[int], Sequence[str]], environment: dict[str, str], *, start_s: float, weights: Path
    ) -> None:
        self._command, self._environment, self._start_s, self._weights = command, environment, start_s, weights
        self.folder = Path(tempfile.mkdtemp(prefix="tether-server-"))
        """Where it runs, and what it can import from."""
        self._process: subprocess.Popen[bytes] | None = None
        self._ending: list[subprocess.Popen[bytes]] = []
        self._port = _free_port()
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def url(self) -> str:
        """On this machine."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def who(self) -> str:
        """What messages call it."""
        pid = "not running" if self._process is None else f"guard has pid {self._process.pid}"
        return f"the server at {self.url} ({pid}, log {self.log})"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / "server.log"

    def start(self) -> None:
        """Start it, without waiting."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).with_name("guard.py")),
                    str(os.getpid()),
                    str(self._weights),
                    str(self.folder),
                    *self._command(self._port),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **self._environment, "PYTHONPATH": self._import_path()},
                start_new_session=True,
            )
        weakref.finalize(self, _end, self._process)

    async def ready(self, is_alive: Alive) -> None:
        """Wait until it answers; start it if it does not run."""
        await asyncio.to_thread(self.gone)
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        if self._process is None:
            self._port = _free_port()
            self.start()
        process = self._process
        assert process is not None
        began = told = time.monotonic()
        while not await is_alive():
            now = time.monotonic()
            if (status := process.poll()) is not None:
                self._process = None
                raise ProcessLostError(
                    f"{self.who} ended with status {status} before it answered; it said:\n{self._why()}"
                )
            if now - began > self._start_s:
                self.end()
                raise ProcessLostError(
                    f"{self.who} did not answer within engine.start_s = {self._start_s:g} seconds, and is ended; it "
                    f"said:\n{self._tail()}"
                )
            if now - told > _TOLD_EVERY_S:
                told = now
                _LOG.info("%s starts, %d of %d seconds: %s", self.who, now - began, self._start_s, self._tail(1))
            await asyncio.sleep(_LOOK_S)

    def end(self) -> None:
        """Begin to end it; the next ``ready`` starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            self._ending.append(process)

    def gone(self) -> None:
        """Wait until those that were ended are gone."""
        for process in self._ending:
            _end(process)
        self._ending.clear()

    def _import_path(self) -> str:
        return os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH", "")]))

    def _why(self) -> str:
        """The last lines of the log, and before them the first in it that name an error."""
        tail = self._tail()
        named = [line for line in self._tail(_WHOLE).splitlines() if _ERROR.search(line) and line not in tail]
        return "\n".join([*named[:_NAMED], tail])

    def _tail(self, lines: int = _TAIL) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have the guard end the server, and wait."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
