"""An event loop whose time is virtual: it stands still while code runs, and jumps to the next timer when all wait."""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
from collections.abc import Callable, Coroutine, Iterable
from contextvars import Context
from typing import Any

from tether.errors import StalledError
from tether.placement.watchdog import Watchdog

NAMED = 3
"""Tasks that are named of those that wait at one place."""
ASKED_AT_MOST_S = 86_400.0
"""asyncio asks for no longer sleep than a day at a time."""


def arrive(arrived: asyncio.Future[None]) -> None:
    """Let whoever waits for it go on, if somebody does."""
    if not arrived.done():
        arrived.set_result(None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer instead of passing.

    >>> async def nap():
    ...     await asyncio.sleep(3600.0)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(nap())
    3600.0
    """

    def __init__(self, watchdog: Watchdog | None = None, start_s: float = 0.0) -> None:
        self._virtual_now = start_s
        self._num_timers = 0
        self._idlers: dict[bool, list[asyncio.Future[None]]] = {False: [], True: []}
        self.main: Coroutine[Any, Any, Any] | None = None
        """What is cancelled, with the verdict as the reason, when nobody can go on."""
        self.stall = ""
        """Who waited for what when nobody could go on."""
        super().__init__(_VirtualSelector(self, watchdog))
        self._clock_resolution = max(1e-9, 2 * math.ulp(start_s))
        self._scheduled: list[asyncio.TimerHandle]  # asyncio's own heap of timers; the next one is first

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def call_at(  # type: ignore[override]  # asyncio ties the arguments to the callback, which a handle does not
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As ever, but timers of one moment go off in the order in which they were set; a heap keeps none."""
        return self.call_in_turn(when, 0, callback, *args, context=context)

    def call_in_turn(
        self, when: float, rank: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """``call_at``, but of the timers of one moment those of lower rank go first, whenever they were set."""
        self._num_timers += 1
        timer = _Timer(when, (rank, self._num_timers), callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def advance(self, seconds: float) -> None:
        """Let virtual time pass; a wait that asyncio cut at a day goes on to its timer."""
        self._virtual_now += seconds
        if seconds >= ASKED_AT_MOST_S and self._scheduled:
            self._virtual_now = max(self._virtual_now, self._scheduled[0].when())
        # asyncio calls a timer due if it is before now + resolution; far into a run that sum must not be now itself
        self._clock_resolution = max(self._clock_resolution, 2 * math.ulp(self._virtual_now))

    def idle(self, *, last: bool = False) -> asyncio.Future[None]:
        """Done when every task waits for another or for time to pass; ``last``: when none waits for this either."""
        idler = self.create_future()
        self._idlers[last].append(idler)
        return idler

    def wake_idlers(self) -> bool:
        """Wake who waits for nobody to be able to go on; whether there was anyone."""
        last = not self._idlers[False]
        idlers, self._idlers[last] = self._idlers[last], []
        for idler in idlers:
            arrive(idler)
        return bool(idlers)

    def give_up(self) -> None:
        """Every task waits: say where, and end the main one, which tidies up; raise if that has not helped."""
        tasks = asyncio.all_tasks(self)
        places = _places(tasks)
        verdict = f"every task waits for another, and no timer is set: {places}"
        main = next((task for task in tasks if task.get_coro() is self.main), None)
        if self.stall or main is None:
            raise StalledError(self.stall or verdict)
        self.stall = verdict
        main.cancel(verdict)


class _Timer(asyncio.TimerHandle):
    """A timer that has a place, rank and number, among those of its moment."""

    _scheduled: bool  # asyncio's own mark of a timer that is in the heap

    def __init__(
        self,
        when: float,
        place: tuple[int, int],
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._place = place

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self.when(), self._place) < (other.when(), other._place)


class _VirtualSelector(selectors.DefaultSelector):
    """Where the loop would sleep: advance its clock instead, or report that nobody can go on."""

    def __init__(self, loop: VirtualLoop, watchdog: Watchdog | None) -> None:
        super().__init__()
        self._loop, self._watchdog = loop, watchdog

    def select(self, timeout: float | int | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._watchdog is not None:
            self._watchdog.feed()
        if timeout == 0 or self._loop.wake_idlers():
            pass
        elif timeout is None:
            self._loop.give_up()
        else:
            self._loop.advance(float(timeout))
        return super().select(0)


def _places(tasks: Iterable[asyncio.Task[Any]]) -> str:
    """Who waits where; of many that wait at one place, the first few."""
    waiting: dict[str, list[str]] = {}
    for task in sorted(tasks, key=lambda task: task.get_name()):
        waiting.setdefault(_place(task), []).append(task.get_name())
    told = []
    for place, names in waiting.items():
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        told.append(f"{', '.join(names[:NAMED])}{more} at {place}")
    return "; ".join(sorted(told)) or "no task is left"


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost line, outside of asyncio itself, at which a task waits."""
    place = "unknown"
    inner: Any = task.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("asyncio"):
            place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return place
