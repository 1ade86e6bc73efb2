"""Being told to stop, by Ctrl-C or by another signal: first after the step under way, then now."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Coroutine
from contextlib import suppress
from types import FrameType
from typing import Any

from tether.pipeline.interrupts import SIGNALS, Stopped, StopRequest

NOTICE = "\n{name}: the run stops after the step under way and saves it; once more stops it now\n"


CLOSES_WITHIN_S = 30.0
"""For how long a run that was told to stop now is left alone while it closes its books."""


class Termination:
    """Turns the first signal of ``SIGNALS`` into a request, the second into ``Stopped`` where the program stands; a
    third changes nothing, unless the run is still there long after the second."""

    def __init__(self, request: StopRequest) -> None:
        self._request = request
        self._stopped_at: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Termination:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._stop) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number)
        if self._request.is_asked:
            now = time.monotonic()
            if self._stopped_at is None or now > self._stopped_at + CLOSES_WITHIN_S:
                self._stopped_at = now
                raise Stopped(name)
            return
        self._request.asked_by = name
        sys.stderr.write(NOTICE.format(name="Ctrl-C" if name is signal.SIGINT else name.name))
        sys.stderr.flush()


def wind_up(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, Any]) -> None:
    """After a stop broke out of the loop: have the main task end what it began, and end.

    A stop inside a task is raised again by every task group around it, and each time out of the loop.
    """
    task = next((task for task in asyncio.all_tasks(loop) if task.get_coro() is main), None)
    if task is None:
        return
    is_winding = True

    def end(_: object) -> None:
        if is_winding:  # else it would stop whoever runs the loop next
            loop.stop()

    task.add_done_callback(end)
    task.cancel()
    while not task.done():
        with suppress(KeyboardInterrupt):
            loop.run_forever()
    is_winding = False


def tell_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler, but for a stop that broke into a task: whoever stopped the run knows."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
