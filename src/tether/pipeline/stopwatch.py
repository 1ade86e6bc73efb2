"""Where the real seconds went. Everything it reports lies under ``time/``; nothing else in a journal depends on it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Awaitable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Stopwatch:
    """Seconds of work by kind, without the time an awaiting task is suspended.

    >>> watch = Stopwatch()
    >>> with watch.running("train"):
    ...     _ = sum(range(10))
    >>> list(watch.lap())
    ['train']
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._began: float | None = None

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Count the block as ``what``."""
        start = time.perf_counter()
        self._began = self._began or start
        try:
            yield
        finally:
            self._seconds[what] += time.perf_counter() - start

    def timing(self, what: str, awaitable: Awaitable[T]) -> _Timed[T]:
        """Await something, counting only the seconds in which it runs."""
        return _Timed(self, what, awaitable)

    def add(self, what: str, seconds: float) -> None:
        """Count work that another process did."""
        self._seconds[what] += seconds

    def wall_lap(self) -> float:
        """Seconds of real time since the last wall lap, or since the first work."""
        now = time.perf_counter()
        began, self._began = self._began, now
        return now - (began or now)

    def lap(self) -> dict[str, float]:
        """Seconds by kind since the last lap; a kind once seen stays, at 0 where nothing of it was done."""
        seconds = dict(self._seconds)
        self._seconds = defaultdict(float, dict.fromkeys(seconds, 0.0))
        return seconds


class _Timed(Generic[T]):
    def __init__(self, watch: Stopwatch, what: str, awaitable: Awaitable[T]) -> None:
        self._watch, self._what, self._awaitable = watch, what, awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        inner = self._awaitable.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                with self._watch.running(self._what):
                    waiting_for = inner.throw(error) if error is not None else inner.send(value)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            try:
                value, error = (yield waiting_for), None
            except BaseException as raised:
                error = raised
