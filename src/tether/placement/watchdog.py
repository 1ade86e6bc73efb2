"""A thread that counts real seconds and stops work that hangs, in a loop whose own time does not pass meanwhile."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from types import FrameType
from typing import Any

from tether.errors import StalledError


class Watchdog:
    """Stops the thread that made it if that does not come by for a while of real time; says where it stood.

    The stop is a ``StalledError`` raised by a signal inside the work that hangs, also in a sleep or a call over the
    network. A thread other than the main one takes no signals and is not watched.
    """

    SIGNAL = signal.SIGUSR2

    def __init__(self, patience_s: float) -> None:
        self.verdict = ""
        self._patience = patience_s
        self._fed = time.monotonic()
        self._watched = threading.get_ident()
        self._before: Any = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tether-watchdog", daemon=True)

    def feed(self) -> None:
        """The loop came by."""
        self._fed = time.monotonic()

    def __enter__(self) -> Watchdog:
        self.feed()
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(self.SIGNAL, self._stop)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread.is_alive():
            self._done.set()
            self._thread.join()
            signal.signal(self.SIGNAL, self._before)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        where = "".join(traceback.format_stack(frame, limit=6)) if frame else "unknown\n"
        self.verdict = (
            f"one piece of work has taken more than placement.hang_after_s = {self._patience:g} seconds; raise it if "
            f"the work is just slow. It stands at:\n{where}"
        )
        raise StalledError(self.verdict)

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self._patience / 4)):
            if time.monotonic() - self._fed > self._patience:
                self.feed()  # a work that goes on in spite of it is stopped again
                signal.pthread_kill(self._watched, self.SIGNAL)
