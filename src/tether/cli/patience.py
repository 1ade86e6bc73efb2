"""A sign of life where a run has nothing to tell yet: servers and big models take minutes to start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Patience:
    """Says every few seconds how long one has waited, until it is over.

    Args:
        say: hears the seconds so far, in a thread of its own.
        every_s: between two words.
    """

    def __init__(self, say: Callable[[float], object], every_s: float) -> None:
        self._say, self._every_s = say, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="tether-patience", daemon=True)

    def start(self) -> None:
        """Begin to wait."""
        self._thread.start()

    def end(self) -> None:
        """What was waited for is here; nothing is said from now on."""
        self._over.set()

    def _wait(self) -> None:
        began = time.monotonic()
        while not self._over.wait(self._every_s):
            self._say(time.monotonic() - began)
