"""Several engines as one: who samples what, and what happens when one is lost."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tether.errors import EngineLostError
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.timeline import Timeline
from tether.ports import GenerationRequest, RolloutEngine
from tether.records import Completion

Place = tuple[int, int]
"""Of a rollout: its group's index, and its own in the group. The order in which engines are asked."""


Taken = Callable[[str, int], object]
"""Told which engine takes a rollout, and the version that it holds."""
Again = Callable[[str, int], GenerationRequest]
"""Told that what the engine had sampled is void; what is asked of it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """Where the engines stand."""

    engines: Mapping[str, str]
    """Of every request under way, by id."""
    flights: Mapping[str, Any]
    """By engine, what it tells of itself; without those that cannot tell."""
    idle: Mapping[str, tuple[float | None, float]]
    """By engine: since when it has nothing to do, and how long it had nothing to do before and was not told."""


@dataclass(slots=True)
class _Seat:
    """An engine, and what it is doing."""

    engine: RolloutEngine
    under_way: set[str] = field(default_factory=set)
    reviving: asyncio.Task[None] | None = None
    """A new engine takes the weights."""
    told_s: float = 0.0
    """Of its working time, what was told to a stopwatch."""
    idle_since: float | None = 0.0
    """On the run's clock; ``None`` while it has something to do."""
    idle_s: float = 0.0
    """Idle times that are over, and were not told."""


class Pool:
    """Engines by name. Each samples at most ``rows`` completions at once; the others wait here, oldest group first, so
    that no engine queues work while another is idle.

    Args:
        engines: by name.
        rows: most completions that an engine is asked for at once.
        now: tells the run's clock.
    """

    def __init__(self, engines: Mapping[str, RolloutEngine], rows: int, now: Callable[[], float]) -> None:
        self._now = now
        self._seats = {name: _Seat(engine) for name, engine in engines.items()}
        self._rows = rows
        self._waiting: list[tuple[Place, str, asyncio.Future[str]]] = []
        self._kept: dict[str, str] = {}  # engines of requests that were under way when a checkpoint was made
        self.revive: Callable[[str], Awaitable[None]] = _cannot_revive
        """Has an engine that was started anew take the version that the others hold."""

    @property
    def engines(self) -> Mapping[str, RolloutEngine]:
        """By name."""
        return {name: seat.engine for name, seat in self._seats.items()}

    @property
    def num_under_way(self) -> int:
        """Completions that an engine has been asked for."""
        return sum(len(seat.under_way) for seat in self._seats.values())

    @property
    def num_waiting(self) -> int:
        """Completions that no engine has room for."""
        return len(self._waiting)

    async def generate(self, request: GenerationRequest, place: Place, taken: Taken, again: Again) -> Completion:
        """Sample a completion on the engine that has most room.

        Raises:
            EngineLostError: the engine died; another stands in its place, and what it had sampled is lost.
        """
        name = self._kept.pop(request.id, "")
        if not name:
            name = await self._seat(request.id, place)
            taken(name, self._seats[name].engine.version)
        engine = self._seats[name].engine
        try:
            while (completion := await engine.generate(request)).finish == "interrupted":
                request = again(name, engine.version)  # and it keeps its seat, for younger ones wait
            return completion
        except EngineLostError:
            await self._revived(name)
            raise
        finally:
            self._leave(name, request.id)

    async def progress(self) -> dict[str, Completion]:
        """What was sampled so far of everything under way, by request id."""
        told = await asyncio.gather(*(seat.engine.progress() for seat in self._seats.values()))
        return {id: completion for each in told for id, completion in each.items()}

    def state(self) -> PoolState:
        """Where the engines stand now."""
        flights = {name: seat.engine.in_flight() for name, seat in self._seats.items()}
        known = {name: flight for name, flight in flights.items() if flight is not None}
        engines = {id: name for name in known for id in sorted(self._seats[name].under_way)}
        idle = {name: (seat.idle_since, seat.idle_s) for name, seat in self._seats.items()}
        return PoolState(engines=engines, flights=known, idle=idle)

    def restore(self, state: PoolState) -> None:
        """Go on from a state, before anything is asked."""
        for name, flight in state.flights.items():
            self._seats[name].engine.restore(flight)
        self._kept = dict(state.engines)
        for name, (since, seconds) in state.idle.items():
            self._seats[name].idle_since, self._seats[name].idle_s = since, seconds
        for id, name in state.engines.items():
            self._seats[name].under_way.add(id)

    def tell(self, watch: Stopwatch, timeline: Timeline) -> None:
        """Count what the engines have worked since the last time, and how long they had nothing to do."""
        now = self._now()
        for name, seat in self._seats.items():
            busy_s = seat.engine.busy_s
            watch.add("generate", busy_s - seat.told_s)
            seat.told_s = busy_s
            if seat.idle_since is not None:
                seat.idle_s, seat.idle_since = seat.idle_s + now - seat.idle_since, now
            timeline.waited(name, seat.idle_s)
            seat.idle_s = 0.0

    async def _seat(self, id: str, place: Place) -> str:
        """Wait for room, oldest place first; the engine that has it, and counts the rollout from here on."""
        for given_up in (seat.reviving for seat in self._seats.values() if seat.reviving and seat.reviving.done()):
            given_up.result()  # raises
        if name := self._roomiest():
            self._take(name, id)
            return name
        seat: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (place, id, seat))
        try:
            return await seat
        except asyncio.CancelledError:
            if seat.done() and not seat.cancelled() and seat.exception() is None:
                self._leave(seat.result(), id)
            raise

    def _take(self, name: str, id: str) -> None:
        seat = self._seats[name]
        seat.under_way.add(id)
        if seat.idle_since is not None:
            seat.idle_s, seat.idle_since = seat.idle_s + self._now() - seat.idle_since, None

    def _leave(self, name: str, id: str) -> None:
        seat = self._seats[name]
        seat.under_way.discard(id)
        self._hand_out()
        if not seat.under_way:
            seat.idle_since = self._now()

    def _hand_out(self) -> None:
        """Give room to whoever waits, oldest first."""
        while self._waiting:
            if self._waiting[0][2].done():
                heapq.heappop(self._waiting)
                continue
            if not (name := self._roomiest()):
                return
            _, id, seat = heapq.heappop(self._waiting)
            self._take(name, id)
            seat.set_result(name)

    def _roomiest(self) -> str:
        """The first of the engines that have least to do; empty if none has room."""
        up = {name: len(seat.under_way) for name, seat in self._seats.items() if seat.reviving is None}
        name = min(up, key=lambda name: up[name], default="")
        return name if name and up[name] < self._rows else ""

    async def _revived(self, name: str) -> None:
        """Have a new engine take the weights. Whoever notices first waits for it, and the others ask elsewhere; it goes
        on if that one's time is up, for nobody else would begin it again."""
        seat = self._seats[name]
        if seat.reviving is None:
            seat.reviving = asyncio.create_task(self._revive(name, seat), name=f"revive {name}")
            await asyncio.shield(seat.reviving)

    async def _revive(self, name: str, seat: _Seat) -> None:
        try:
            await self.revive(name)
        except Exception as error:
            for _, _, waiter in self._waiting:
                if not waiter.done():
                    waiter.set_exception(error)
            raise
        seat.reviving = None
        self._hand_out()


async def _cannot_revive(name: str) -> None:
    raise EngineLostError(f"{name} was lost, and nobody can give a new one its weights")
