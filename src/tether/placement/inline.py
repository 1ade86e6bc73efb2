"""One process under virtual time: exact, reproducible staleness, and a debugger that works.

The event loop's clock is virtual. It stands still while code runs and jumps to the next timer when every task waits,
so what takes how long is decided by costs in the recipe, never by the machine. Nothing runs in threads; a watchdog
counts real seconds and stops a run that hangs.
"""

from __future__ import annotations

import _thread
import asyncio
import selectors
import sys
import threading
import time
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from tether.errors import ConfigError, StalledError

T = TypeVar("T")


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
            if not 0 <= getattr(self, f.name) < float("inf"):
                raise ConfigError(f"placement.costs.{f.name} must be finite and >= 0; got {getattr(self, f.name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inline:
    """The ``[placement]`` table of kind ``inline``."""

    costs: Costs = field(default_factory=Costs)
    hang_after_s: float = 600.0
    """Real seconds that one piece of work may take before the watchdog stops the run and says where it stands."""

    def __post_init__(self) -> None:
        if not self.hang_after_s > 0:
            raise ConfigError(f"placement.hang_after_s must be > 0; got {self.hang_after_s}")

    def clock(self) -> InlineClock:
        """The run's clock."""
        return InlineClock(self.costs)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end under virtual time."""
        with Watchdog(self.hang_after_s) as watchdog, asyncio.Runner(loop_factory=lambda: VirtualLoop(watchdog)) as run:
            try:
                return run.run(main)
            except KeyboardInterrupt:
                if watchdog.verdict:
                    raise StalledError(watchdog.verdict) from None
                raise


class InlineClock:
    """Virtual seconds since the loop began; work spends its configured cost."""

    def __init__(self, costs: Costs) -> None:
        self._costs = {f.name.removesuffix("_s"): float(getattr(costs, f.name)) for f in fields(costs)}

    def now(self) -> float:
        """Virtual seconds, rounded to a nanosecond."""
        return round(asyncio.get_running_loop().time(), 9)

    async def spend(self, what: str, amount: float = 1.0) -> None:
        """Sleep for the cost, in virtual time; others run meanwhile."""
        await asyncio.sleep(self._costs[what] * amount)


class FreeClock:
    """A clock on which nothing costs anything: for work outside the run, such as evaluation."""

    def now(self) -> float:
        """Always 0."""
        return 0.0

    async def spend(self, what: str, amount: float = 1.0) -> None:
        """Return at once."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer instead of passing.

    >>> async def nap():
    ...     await asyncio.sleep(3600.0)
    ...     return asyncio.get_running_loop().time()
    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(nap())
    3600.0
    """

    def __init__(self, watchdog: Watchdog | None = None) -> None:
        self._virtual_now = 0.0
        super().__init__(_VirtualSelector(self, watchdog))

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual_now

    def advance(self, seconds: float) -> None:
        """Let virtual time pass."""
        self._virtual_now += seconds


class _VirtualSelector(selectors.DefaultSelector):
    """Where the loop would sleep: advance its clock instead, or report that nobody can go on."""

    def __init__(self, loop: VirtualLoop, watchdog: Watchdog | None) -> None:
        super().__init__()
        self._loop, self._watchdog = loop, watchdog

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._watchdog is not None:
            self._watchdog.feed()
        if timeout is None:
            raise StalledError(f"every task waits for another, and no timer is set: {_waiting(self._loop)}")
        if timeout > 0:
            self._loop.advance(timeout)
        return super().select(0)


def _waiting(loop: asyncio.AbstractEventLoop) -> str:
    """Each unfinished task with the line it waits at."""
    places = []
    for task in asyncio.all_tasks(loop):
        frames = task.get_stack(limit=1)
        where = f"{frames[0].f_code.co_qualname}:{frames[0].f_lineno}" if frames else "unknown"
        places.append(f"{task.get_name()} at {where}")
    return "; ".join(sorted(places)) or "no task is left"


class Watchdog:
    """Stops the main thread if it does not come by for a while of real time; the verdict says where it stood."""

    def __init__(self, patience_s: float) -> None:
        self.verdict = ""
        self._patience = patience_s
        self._fed = time.monotonic()
        self._main = threading.main_thread().ident
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="tether-watchdog", daemon=True)

    def feed(self) -> None:
        """The loop came by."""
        self._fed = time.monotonic()

    def __enter__(self) -> Watchdog:
        self.feed()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(min(1.0, self._patience / 4)):
            hung = time.monotonic() - self._fed
            if hung > self._patience and self._main is not None:
                frame = sys._current_frames().get(self._main)
                where = "".join(traceback.format_stack(frame, limit=6)) if frame else "unknown\n"
                self.verdict = (
                    f"one piece of work has taken {hung:.0f} s, more than placement.hang_after_s = "
                    f"{self._patience:.0f}; raise it if the work is just slow. It stands at:\n{where}"
                )
                _thread.interrupt_main()
                return
