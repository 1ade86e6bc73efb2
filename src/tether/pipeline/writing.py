"""Work on the disk that goes on beside the training."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from tether.errors import ResumeError

PATIENCE_S: Final = 60.0
"""How long a run that is over waits for its last checkpoint to be written."""
Write = Callable[[Path], object]
"""Writes into a new folder."""
Into = Callable[[Write], object]
"""Makes a checkpoint: its folder, what a ``Write`` puts into it, its seal, its name. Travels by pickle."""


def given_up() -> ResumeError:
    """What is told of a checkpoint that took too long."""
    return ResumeError(
        f"the checkpoint that was being written was not done {PATIENCE_S:g} seconds after the run was over, and was "
        "given up; the earlier ones are whole: go on with tether train --resume"
    )


@runtime_checkable
class Writing(Protocol):
    """A checkpoint that is being written."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        ...

    async def wait(self) -> float:
        """Wait for its end: the real seconds it took. Raises what went wrong."""
        ...

    async def close(self) -> Exception | None:
        """The run is over: wait for a while, then give it up; what went wrong."""
        ...


class ThreadWriting:
    """Work in a thread of this process, which is waited for without giving way: no virtual time passes meanwhile.

    >>> import asyncio
    >>> writing = ThreadWriting(lambda: None)
    >>> asyncio.run(writing.wait()) >= 0.0, writing.is_done, asyncio.run(writing.close())
    (True, True, None)
    """

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self._error: Exception | None = None
        self._seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="tether-writes", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    async def wait(self) -> float:
        """Wait for its end: the real seconds it took. Raises what went wrong."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._seconds

    async def close(self) -> Exception | None:
        """Wait for a while, then give it up; what went wrong."""
        try:
            self._thread.join(PATIENCE_S)
        except Exception as error:  # a watchdog's
            return error
        return given_up() if self._thread.is_alive() else self._error

    def _run(self) -> None:
        began = time.perf_counter()
        try:
            self._work()
        except Exception as error:  # told to whoever waits
            self._error = error
        self._seconds = time.perf_counter() - began
