"""One process under virtual time: exact, reproducible staleness, and a debugger that works.

The event loop's clock is virtual. It stands still while code runs and jumps to the next timer when every task waits,
so what takes how long is decided by costs in the recipe, never by the machine. Nothing runs in threads; a watchdog
counts real seconds and stops a run that hangs.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import signal
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass, field, fields
from types import FrameType
from typing import Any, TypeVar

from tether.errors import ConfigError, StalledError
from tether.journal.writer import process_facts
from tether.pipeline.interrupts import StopRequest
from tether.pipeline.rollouts import score_here
from tether.placement.parts import MOST_ENGINES, Makers, Parts
from tether.placement.termination import Termination
from tether.weights.memory import MemoryStore

T = TypeVar("T")

MOST_COST_S = 1e6
"""Largest cost of one piece of work, about twelve virtual days."""
PATIENCE_S = (0.1, 1e9)
"""Least and most patience of the watchdog; with less it would stop a run that is only starting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The ``[placement.costs]`` table: what work costs on the virtual clock, in seconds."""

    generate_token_s: float = 0.02
    """One decode step of the engine, however many rows."""
    reward_s: float = 0.0
    """One judged completion."""
    train_step_s: float = 0.1
    """One optimizer update."""
    publish_s: float = 0.05
    """One version published and loaded."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not 0 <= (cost := getattr(self, f.name)) <= MOST_COST_S:
                raise ConfigError(f"placement.costs.{f.name} must lie in 0 .. {MOST_COST_S:g} seconds; got {cost}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """The ``[placement]`` table of kind ``inline``."""

    engines: int = 1
    """How many sample, each with a copy of the model, at the same virtual time."""
    costs: Costs = field(default_factory=Costs)
    hang_after_s: float = 600.0
    """Real seconds that one piece of work may take before the watchdog stops the run and says where it stands."""

    def __post_init__(self) -> None:
        if not 1 <= self.engines <= MOST_ENGINES:
            raise ConfigError(f"placement.engines must lie in 1 .. {MOST_ENGINES}; got {self.engines}")
        least, most = PATIENCE_S
        if not least <= self.hang_after_s <= most:
            raise ConfigError(
                f"placement.hang_after_s must lie in {least:g} .. {most:g} seconds; got {self.hang_after_s}"
            )

    def check(self, device: str) -> None:
        """Everything that this process can do is fine."""

    @contextmanager
    def open(self, makers: Makers) -> Iterator[Parts]:
        """All parts in this process."""
        store, clock = MemoryStore(makers.dtype), self.clock()
        learner = makers.learner(store, makers.device)
        parts = Parts(
            learner=learner,
            engines={f"engine-{n}": makers.engine(store, clock, makers.device) for n in range(self.engines)},
            score=score_here(makers.reward()),
            clock=clock,
            vocabulary=learner.loaded.vocabulary,
            device=makers.device,
        )
        parts.notices.process(process_facts("controller, learner, engines, rewards"))
        yield parts

    def clock(self) -> InlineClock:
        """The run's clock."""
        return InlineClock(self.costs)

    def run(self, main: Coroutine[Any, Any, T], stop: StopRequest | None = None, *, start_s: float = 0.0) -> T:
        """Run a coroutine to its end under virtual time that begins at ``start_s``."""
        with (
            Watchdog(self.hang_after_s) as watchdog,
            Termination(stop or StopRequest()),
            asyncio.Runner(loop_factory=lambda: VirtualLoop(watchdog, start_s)) as runner,
        ):
            loop = runner.get_loop()
            assert isinstance(loop, VirtualLoop)
            loop.main = main
            loop.set_exception_handler(tell_exception)
            try:
                return runner.run(main)
            except asyncio.CancelledError:
                if loop.stall:
                    raise StalledError(loop.stall) from None
                raise


def tell_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio's own handler, but for a stop that broke into a task: whoever stopped the run knows."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


class InlineClock:
    """Virtual seconds since the loop began; work spends its configured cost."""

    def __init__(self, costs: Costs) -> None:
        self._costs = {f.name.removesuffix("_s"): float(getattr(costs, f.name)) for f in fields(costs)}
        self._is_free: ContextVar[bool] = ContextVar("is_free", default=False)  # each task has its own

    def now(self) -> float:
        """Virtual seconds, rounded to a nanosecond."""
        return round(asyncio.get_running_loop().time(), 9)

    async def spend(self, what: str, amount: float = 1.0) -> None:
        """Sleep for the cost, in virtual time; others run meanwhile."""
        await self.until(self.due(what, amount))

    def due(self, what: str, amount: float = 1.0) -> float:
        """The virtual moment at which that work is done."""
        return asyncio.get_running_loop().time() + (0.0 if self._is_free.get() else self._costs[what] * amount)

    async def until(self, moment_s: float) -> None:
        """Sleep until a virtual moment."""
        loop = asyncio.get_running_loop()
        if moment_s <= loop.time():
            await asyncio.sleep(0)
            return
        arrived = loop.create_future()
        timer = loop.call_at(moment_s, _arrive, arrived)
        try:
            await arrived
        finally:
            timer.cancel()

    async def quiet(self) -> None:
        """Wait until nobody can go on without time passing."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await loop.idle()

    @contextmanager
    def free(self) -> Iterator[None]:
        """What this task does inside costs nothing; others spend as ever."""
        before = self._is_free.set(True)
        try:
            yield
        finally:
            self._is_free.reset(before)


class FreeClock:
    """A clock on which nothing costs anything: for work outside the run, such as evaluation."""

    def now(self) -> float:
        """Always 0."""
        return 0.0

    async def spend(self, what: str, amount: float = 1.0) -> None:
        """Let others run, at no cost."""
        await asyncio.sleep(0)

    def due(self, what: str, amount: float = 1.0) -> float:
        """Now."""
        return 0.0

    async def until(self, moment_s: float) -> None:
        """Let others run."""
        await asyncio.sleep(0)

    async def quiet(self) -> None:
        """Let others run."""
        await asyncio.sleep(0)

    def free(self) -> AbstractContextManager[None]:
        """As outside."""
        return nullcontext()


def _arrive(arrived: asyncio.Future[None]) -> None:
    if not arrived.done():
        arrived.set_result(None)


NAMED = 3
"""Tasks that are named of those that wait at one place."""
ASKED_AT_MOST_S = 86_400.0
"""asyncio asks for no longer sleep than a day at a time."""


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
        self._idlers: list[asyncio.Future[None]] = []
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

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As ever, but timers of one moment go off in the order in which they were set; a heap keeps none."""
        self._num_timers += 1
        timer = _Timer(when, self._num_timers, callback, args, self, context)
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

    def idle(self) -> asyncio.Future[None]:
        """Done when every task waits for another or for time to pass."""
        idler = self.create_future()
        self._idlers.append(idler)
        return idler

    def wake_idlers(self) -> bool:
        """Wake who waits for nobody to be able to go on; whether there was anyone."""
        idlers, self._idlers = self._idlers, []
        for idler in idlers:
            _arrive(idler)
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
    """A timer that is later than those of its moment that were set before it."""

    _scheduled: bool  # asyncio's own mark of a timer that is in the heap

    def __init__(
        self,
        when: float,
        number: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: VirtualLoop,
        context: Context | None,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._number = number

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, _Timer):
            return NotImplemented
        return (self.when(), self._number) < (other.when(), other._number)


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
