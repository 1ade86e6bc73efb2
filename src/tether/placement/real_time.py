"""Time that passes by itself: for parts that work in processes of their own."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext


class RealLoop(asyncio.SelectorEventLoop):
    """An event loop whose time are the seconds of the run: it begins at 0, or where an earlier part of it ended.

    >>> with asyncio.Runner(loop_factory=lambda: RealLoop(40.0)) as runner:
    ...     40.0 <= runner.get_loop().time() < 60.0
    True
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._offset_s = 0.0
        super().__init__()
        self._offset_s = start_s - super().time()

    def time(self) -> float:
        """Seconds since the run began."""
        return super().time() + self._offset_s


class RealClock:
    """A ``Clock`` of real seconds: work takes what it takes, so that no cost is added."""

    def now(self) -> float:
        """Seconds, rounded to a microsecond."""
        return round(asyncio.get_running_loop().time(), 6)

    async def spend(self, what: str, amount: float = 1.0) -> None:
        """Let others run."""
        await asyncio.sleep(0)

    def due(self, what: str, amount: float = 1.0) -> float:
        """Now: the work has taken its time already."""
        return asyncio.get_running_loop().time()

    async def until(self, moment_s: float) -> None:
        """Sleep until a moment; let others run at least once."""
        await asyncio.sleep(max(0.0, moment_s - asyncio.get_running_loop().time()))

    async def quiet(self, *, last: bool = False) -> None:
        """Let others run."""
        await asyncio.sleep(0)

    def free(self) -> AbstractContextManager[None]:
        """As outside."""
        return nullcontext()
