"""Being told to stop by other means than Ctrl-C: the run closes its books all the same."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

STOPS = (signal.SIGTERM, signal.SIGHUP)
"""What ``timeout``, containers, schedulers and closed terminals send."""


class Terminated(KeyboardInterrupt):
    """A run that a signal stopped, after it closed its books."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_code = 128 + int(number)
        """The shell's convention."""


class Termination:
    """Cancels a coroutine at its next pause when a signal of ``STOPS`` comes; a second one kills as usual."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._task: asyncio.Task[Any] | None = None
        self._before: dict[signal.Signals, Any] = {}

    async def watch(self, main: Coroutine[Any, Any, T]) -> T:
        """Await the coroutine as the one to be cancelled."""
        self._task = asyncio.current_task()
        return await main

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in STOPS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.signal = signal.Signals(number)
        if self._task is not None:
            self._task.cancel()
