"""Rewards in processes of their own: asked in order, a few at a time, and asked again where a process dies."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tether.errors import RewardError
from tether.pipeline.gathering import Gathering
from tether.placement.deadlines import Deadlines
from tether.placement.desk import Desk
from tether.placement.line import Line
from tether.placement.parts import Notices
from tether.placement.ray_process import Process, ProcessDiedError
from tether.placement.restarts import Restarts
from tether.records import Answer, Judgement, Prompt
from tether.rewards.composition import Composition

AT_ONCE = 8
"""Rollouts that a worker has in hand: one is judged, the others are there when it is done; or all together, if a reward
would rather."""
DEATHS = 2
"""Processes that may die over one rollout before it has failed."""
Piece = tuple[Prompt, Answer]
"""What rewards are asked about."""


class RewardPart:
    """The rewards in a process of their own. It judges one answer after the other, or those in hand together where a
    reward would rather, in a thread beside the desk, so that what is judged can leave while the next one takes its
    time."""

    def __init__(self, make: Callable[[], Composition]) -> None:
        self._rewards, self._busy_s = make(), 0.0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tether-judges")
        self._gathering = Gathering(self._judge_all, AT_ONCE if self._rewards.gathers else 1)
        desk = Desk(self._judge, lambda: self._busy_s)
        self.submit, self.cancel, self.collect = desk.submit, desk.cancel, desk.collect

    def about(self) -> None:
        """Nothing that the controller must know."""

    async def _judge(self, piece: Piece) -> Judgement:
        return await self._gathering.ask(*piece)

    async def _judge_all(self, asked: Sequence[Piece]) -> list[Judgement | RewardError]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._scored, asked)

    def _scored(self, asked: Sequence[Piece]) -> list[Judgement | RewardError]:
        began = time.perf_counter()
        try:
            return self._rewards.judge_all(asked)
        finally:
            self._busy_s += time.perf_counter() - began


@dataclass(slots=True, eq=False)
class _Worker:
    """A process, and what it has in hand: numbers of rollouts, the one that it judges first."""

    process: Process
    line: Line
    in_hand: dict[int, bool] = field(default_factory=dict)
    """With whether it must be asked by itself."""
    blamed: int | None = None
    """It died, over this one; 0 if it was ended because nobody waits any more for what it did."""

    def has_room(self, *, by_itself: bool) -> bool:
        """Whether it may take one more, or one that must be asked by itself."""
        return not self.in_hand if by_itself else len(self.in_hand) < AT_ONCE and not any(self.in_hand.values())


class RewardPool:
    """A ``Scorer`` whose work is done by processes named at the start.

    Each has at most ``AT_ONCE`` rollouts in hand; the others wait here in the order in which they came. A rollout whose
    caller gives up (it has a deadline) while a worker judges it ends that worker, for a reward that hangs cannot be
    interrupted otherwise; one that waits is just taken out. What a dead worker had in hand is asked elsewhere, each by
    itself, so that it is known over which the next one dies: the one that it died over once; then that has failed. A
    worker is started anew as soon as a rollout waits for it.

    Args:
        start: starts a worker of a name.
        names: of all workers.
        deadlines: how long a start, or one reward, may take.
        restarts: how often a process that died may be started anew; those that were ended are not counted.
        notices: hears of each process.
    """

    def __init__(
        self,
        start: Callable[[str], Process],
        names: Iterable[str],
        deadlines: Deadlines,
        restarts: Restarts,
        notices: Notices,
    ) -> None:
        self._start, self._deadlines, self._restarts, self._notices = start, deadlines, restarts, notices
        self._workers = {name: self._new(name) for name in names}
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[tuple[int, bool, asyncio.Future[_Worker]]] = []
        self._num_asked = 0

    def started(self) -> None:
        """Wait for the first processes; for before the loop runs."""
        for worker in self._workers.values():
            worker.process.started(self._deadlines.start_s)
            self._notices.process(worker.process.facts)

    def end(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.process.end()

    @property
    def num_waiting(self) -> int:
        """Rollouts that no worker has in hand."""
        return sum(not seat.done() for _, _, seat in self._waiting)

    async def score(self, prompt: Prompt, answer: Answer) -> Judgement:
        """What the rewards give an answer; raises ``RewardError`` naming the rollout."""
        self._num_asked += 1
        number, deaths, by_itself = self._num_asked, 0, False
        while True:
            worker = await self._seat(number, by_itself=by_itself)
            try:
                judgement: Judgement = await worker.line.ask((prompt, answer))
                return judgement
            except ProcessDiedError as died:
                self._bury(worker, died)
                by_itself = True
                deaths += worker.blamed == number
                if deaths == DEATHS:
                    raise RewardError(
                        f"a reward must give a number for every response; {deaths} processes died over rollout "
                        f"{answer.id} of prompt {prompt.id}, the last one: {died}; the response was {answer.text!r}",
                        rollout_id=answer.id,
                    ) from died
            except asyncio.CancelledError:
                self._end_if_busy(worker, number)
                raise
            finally:
                worker.in_hand.pop(number, None)
                self._hand_out()

    async def _seat(self, number: int, *, by_itself: bool) -> _Worker:
        """Wait for room at a worker, first come first served; one that is asked again keeps its turn."""
        seat: asyncio.Future[_Worker] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (number, by_itself, seat))
        self._hand_out()
        try:
            return await seat
        except asyncio.CancelledError:
            if seat.done() and not seat.cancelled() and seat.exception() is None:
                seat.result().in_hand.pop(number, None)
                self._hand_out()
            raise

    def _hand_out(self) -> None:
        while self._waiting:
            number, by_itself, seat = self._waiting[0]
            if not seat.done():
                live = (w for w in self._workers.values() if w.blamed is None and w.has_room(by_itself=by_itself))
                worker = min(live, key=lambda w: len(w.in_hand), default=None)
                if worker is None:
                    self._start_anew()
                    return
                worker.in_hand[number] = by_itself
                seat.set_result(worker)
            heapq.heappop(self._waiting)

    def _bury(self, worker: _Worker, died: ProcessDiedError) -> None:
        """Whoever notices first says over which rollout it died; that counts, and may be once too often."""
        if worker.blamed is None:
            worker.blamed = next(iter(worker.in_hand))
            self._restarts.take(str(died))

    def _end_if_busy(self, worker: _Worker, number: int) -> None:
        if worker.blamed is None and next(iter(worker.in_hand)) == number:
            worker.blamed = 0
            self._notices.warn(f"{worker.process.who} was ended: nobody waits any more for the rollout that it judges")
            self._start_anew(worker)

    def _start_anew(self, *also: _Worker) -> None:
        """Start those that are gone, and end those given; each once."""
        for name, worker in self._workers.items():
            is_wanted = worker.blamed is not None and (worker in also or bool(self._waiting))
            if is_wanted and name not in self._coming:
                task = asyncio.get_running_loop().create_task(self._replace(name, worker), name=f"start {name}")
                self._coming[name] = task

    async def _replace(self, name: str, worker: _Worker) -> None:
        try:
            await asyncio.to_thread(worker.process.end)
            while any(not seat.done() for _, _, seat in self._waiting):
                successor = self._workers[name] = self._new(name)
                successor.blamed = 0  # until it has started
                try:
                    await successor.process.starting(self._deadlines.start_s)
                except ProcessDiedError as died:
                    await asyncio.to_thread(successor.process.end)
                    self._restarts.take(str(died))
                    continue
                successor.blamed = None
                self._notices.process(successor.process.facts)
                break
        except Exception as error:
            for _, _, seat in self._waiting:
                if not seat.done():
                    seat.set_exception(error)
        finally:
            del self._coming[name]
        self._hand_out()

    def _new(self, name: str) -> _Worker:
        process = self._start(name)
        return _Worker(process, Line(process, deadline="reward_s", within_s=self._deadlines.reward_s))
