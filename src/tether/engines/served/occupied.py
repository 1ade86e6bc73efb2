"""Real seconds in which anything at all was under way."""

from __future__ import annotations

import time


class Occupied:
    """A stopwatch that several may be inside at once: it runs while anybody is.

    >>> occupied = Occupied()
    >>> with occupied, occupied:
    ...     pass
    >>> occupied.seconds > 0
    True
    """

    def __init__(self) -> None:
        self._num_inside, self._began, self._before_s = 0, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """So far; it never falls."""
        return self._before_s + (time.perf_counter() - self._began if self._num_inside else 0.0)

    def __enter__(self) -> None:
        if not self._num_inside:
            self._began = time.perf_counter()
        self._num_inside += 1

    def __exit__(self, *_: object) -> None:
        self._num_inside -= 1
        if not self._num_inside:
            self._before_s += time.perf_counter() - self._began
