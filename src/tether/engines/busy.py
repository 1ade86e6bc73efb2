"""Real seconds of work, added up."""

from __future__ import annotations

import time


class Busy:
    """A stopwatch that runs inside ``with``.

    >>> busy = Busy()
    >>> with busy:
    ...     pass
    >>> busy.seconds > 0
    True
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began
