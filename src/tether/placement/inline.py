"""One process under virtual time: exact, reproducible staleness, and a debugger that works.

The event loop's clock is virtual. It stands still while code runs and jumps to the next timer when every task waits,
so what takes how long is decided by costs in the recipe, never by the machine. Nothing runs in threads; a watchdog
counts real seconds and stops a run that hangs.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from tether.errors import ConfigError, StalledError
from tether.journal.writer import process_facts
from tether.pipeline.interrupts import StopRequest
from tether.pipeline.rollouts import score_here
from tether.placement.parts import MOST_ENGINES, Makers, Parts
from tether.placement.termination import Termination, tell_exception, wind_up
from tether.placement.virtual_time import VirtualLoop, arrive
from tether.placement.watchdog import Watchdog
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
        full = None if (held := makers.evaluator) is None else MemoryStore(held.dtype, held.versions)
        learner = makers.learner(store, makers.device, full)
        parts = Parts(
            learner=learner,
            engines={
                f"engine-{n}": makers.engine(store, clock.ranked(n + 1), makers.device) for n in range(self.engines)
            },
            score=score_here(makers.rewards()),
            evaluator=None if held is None or full is None else held.make(full, makers.device),
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
            except KeyboardInterrupt:
                wind_up(loop, main)
                raise
            except asyncio.CancelledError:
                if loop.stall:
                    raise StalledError(loop.stall) from None
                raise


class InlineClock:
    """Virtual seconds since the loop began; work spends its configured cost.

    What several do is due at one moment in the order of their ranks: a run that goes on cannot know who was first.
    """

    def __init__(self, costs: Costs, rank: int = 0) -> None:
        self._rank = rank
        self._costs = {f.name.removesuffix("_s"): float(getattr(costs, f.name)) for f in fields(costs)}
        self._is_free: ContextVar[bool] = ContextVar("is_free", default=False)  # each task has its own

    def ranked(self, rank: int) -> InlineClock:
        """The same clock for one of several who do the same."""
        other = copy.copy(self)
        other._rank = rank
        return other

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
        assert isinstance(loop, VirtualLoop)
        arrived = loop.create_future()
        timer = loop.call_in_turn(moment_s, self._rank, arrive, arrived)
        try:
            await arrived
        finally:
            timer.cancel()

    async def quiet(self, *, last: bool = False) -> None:
        """Wait until nobody can go on without time passing."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await loop.idle(last=last)

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

    async def quiet(self, *, last: bool = False) -> None:
        """Let others run."""
        await asyncio.sleep(0)

    def free(self) -> AbstractContextManager[None]:
        """As outside."""
        return nullcontext()
