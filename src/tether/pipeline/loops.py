"""The four loops of a run: feed, roll, pack, train. Each says what it consumes, waits for and unblocks.

::

    feed --asked--> roll --groups--> buffer --groups--> pack --step--> train --version--> publisher
      ^                                                                  |
      +------------------------- free slots (after publication) --------+
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from tether.core.advantage import Advantage
from tether.errors import NonFiniteError, StalledError
from tether.journal.ledger import Ledger
from tether.journal.spans import PUBLICATIONS, QUEUE, TRAINER
from tether.models.sharing import PromptSharing
from tether.pipeline.buffer import BufferState
from tether.pipeline.curriculum import Curriculum, CurriculumState
from tether.pipeline.learner import Learner
from tether.pipeline.packing import Row, Step, credited, pack
from tether.pipeline.pool import PoolState
from tether.pipeline.publisher import Publisher
from tether.pipeline.reporting import Standing
from tether.pipeline.rolling import Member, Rolling, Streaks, Underway
from tether.pipeline.rollouts import Sampling, ask
from tether.pipeline.schedule import Schedule
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import StepReport
from tether.records import Group, Prompt, Rollout

T = TypeVar("T")
AfterStep = Callable[[int, Step, StepReport, Standing], Awaitable[None]]
Between = Callable[[int], Awaitable[None]]
Dump = Callable[[Sequence[Row], NonFiniteError], NonFiniteError]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopsState:
    """What the loops hold between two batches."""

    done: int
    """Batches."""
    buffer: BufferState
    open: tuple[Underway, ...]
    """Groups between being asked for and the buffer."""
    pool: PoolState
    streaks: Streaks
    asking_s: float | None
    """Since when feed waits for a slot."""
    waits: Mapping[str, float]
    """Of the timeline, what no step has told."""
    loads: tuple[tuple[float, int], ...]
    """When the engines held which version."""
    kinds_told: tuple[str, ...]
    """Of failures that somebody was told of."""
    curriculum: CurriculumState | None = None
    """Where the recipe has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How groups become steps."""

    advantage: Advantage
    token_budget: int
    pad_id: int
    device: str
    sharing: PromptSharing | None = None
    """Whether completions share a prompt, and how many; see ``trainer.share_prompt``."""

    def step(self, groups: Sequence[Group]) -> Step:
        """One step from its groups."""
        return pack(
            groups,
            self.advantage,
            token_budget=self.token_budget,
            pad_id=self.pad_id,
            device=self.device,
            sharing=self.sharing,
        )


@dataclass(slots=True, kw_only=True)
class Loops:
    """One run's loops and what flows between them."""

    steps: int
    """Batches of the whole run."""
    schedule: Schedule
    prompts: Callable[[int], Prompt]
    sampling: Sampling
    packing: Packing
    rolling: Rolling
    learner: Learner
    publisher: Publisher
    watch: Stopwatch
    ledger: Ledger
    dump: Dump
    """Stores a batch that holds a non-finite number; gives the error that says where."""
    curriculum: Curriculum | None = None
    """Chooses among the prompts; without one they are asked by the group's index."""
    acquires: bool = False
    """Whether the learner scores what was sampled before each update: old log-probs by ``interruption``."""
    done: int = field(init=False, default=0)
    """Batches that are done."""
    asking_s: float | None = field(init=False, default=None)
    """Since when feed waits for a slot."""
    asked: deque[Underway] = field(init=False, default_factory=deque)
    has_asked: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    packed: asyncio.Queue[Step] = field(init=False)
    _versions: dict[int, set[int]] = field(init=False, default_factory=dict)
    """Of finished groups, by index."""

    def __post_init__(self) -> None:
        self.packed = asyncio.Queue(maxsize=1)
        if self.curriculum is not None:
            self.rolling.measured = self.curriculum.learn

    def state(self) -> LoopsState:
        """What the loops hold now; between two batches, and nowhere else."""
        rolling = self.rolling
        opened = [replace(group, members=[replace(m) for m in group.members]) for group in rolling.open.values()]
        return LoopsState(
            done=self.done,
            buffer=rolling.buffer.state(),
            open=tuple(opened),
            pool=rolling.pool.state(),
            streaks=rolling.streaks,
            asking_s=self.asking_s,
            waits=rolling.timeline.state(),
            loads=tuple(self.publisher.loads),
            kinds_told=tuple(sorted(rolling.kinds_told)),
            curriculum=None if self.curriculum is None else self.curriculum.state(),
        )

    def restore(self, state: LoopsState) -> None:
        """Go on from a state; what a loop had in its hands and cannot be told is done again, under the same ids."""
        rolling = self.rolling
        self.done = state.done
        rolling.buffer.restore(state.buffer)
        self.asked = deque(state.open)
        rolling.pool.restore(state.pool)
        rolling.streaks, self.asking_s = state.streaks, state.asking_s
        rolling.kinds_told.update(state.kinds_told)
        rolling.timeline.restore(state.waits)
        if self.curriculum is not None and state.curriculum is not None:
            self.curriculum.restore(state.curriculum)
        self.publisher.loads.clear()
        self.publisher.loads.extend(state.loads)

    async def feed(self) -> None:
        """Consumes prompts. Waits for a free slot. Unblocks roll."""
        rolling = self.rolling
        while True:
            began = self.asking_s = rolling.clock.now() if self.asking_s is None else self.asking_s
            await rolling.buffer.room()
            prompt = self._next_prompt()  # before it is admitted: a source may fail
            index = await rolling.buffer.admit()
            now, self.asking_s = rolling.clock.now(), None
            rolling.timeline.waited("slot", now - began)
            asked = ask(index, prompt, self.sampling, now)
            for request in asked.requests:
                self.ledger.admit(request.id, asked.prompt.id, asked.id, asked.started_s)
            self.asked.append(Underway(asked=asked, members=[Member(request=r) for r in asked.requests]))
            self.has_asked.set()

    def _next_prompt(self) -> Prompt:
        return self.prompts(self.rolling.buffer.num_admitted) if self.curriculum is None else self.curriculum.next()

    async def roll(self) -> None:
        """Consumes asked groups, and lets each live. Waits for them to be asked. Unblocks pack, and a publication in
        waiting."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                asked = list(self.asked)
                self.asked.clear()
                self.rolling.start(asked, tasks)
                self.has_asked.clear()
                await self.has_asked.wait()

    async def pack(self) -> None:
        """Consumes finished groups, oldest first. Waits for a batch's worth. Unblocks train."""
        for _ in range(self.done, self.steps):
            groups = await self._take()
            try:
                with self.watch.running("pack"):
                    step = self.packing.step(groups)
            except NonFiniteError as error:
                raise self.dump(credited(groups, self.packing.advantage), error) from error
            await self.packed.put(step)

    async def train(self, after_step: AfterStep, between: Between) -> None:
        """Consumes steps. Waits for a step, and before a publication for generation to settle where the regime says
        so. Unblocks feed."""
        clock, timeline = self.rolling.clock, self.rolling.timeline
        await clock.quiet(last=True)  # the others stand where they stood, as if it had never stopped
        for number in range(self.done + 1, self.steps + 1):
            with timeline.waiting("data"):
                step = await self._patiently("a batch", self.packed.get)
            if self.acquires:
                await self.watch.timing("train", self._acquire())
            used_s, updates = clock.now(), self.learner.updates
            try:
                report = await self.watch.timing("train", self.learner.step(step))
            except NonFiniteError as error:
                raise self.dump(step.rows, error) from error
            self._close(step, report, number, used_s)
            self.rolling.buffer.retire()
            self.done = number
            await clock.spend("train_step", float(self.schedule.updates_per_batch))  # the books are closed: it may stop
            timeline.span(TRAINER, "step", used_s, clock.now(), step=number, version=self.learner.updates)
            await after_step(number, step, report, self._standing(updates))
            if self.schedule.publishes_after(number):
                await self._publish()
            await clock.quiet(last=True)
            await between(number)

    async def _acquire(self) -> None:
        """Have the learner score what was sampled since the publication before the last."""
        rolling = self.rolling
        rollouts = {rollout.id: rollout for rollout in self._held()}
        progress = await rolling.pool.progress()
        for group in rolling.open.values():
            rollouts |= {rollout.id: rollout for rollout in group.parts(progress)}
        versions = [version for _, version in self.publisher.loads]
        since = versions[-2] if len(versions) > 1 else 0
        fresh = [r for r in rollouts.values() if int(r.completion.version.max(initial=-1)) >= since]
        await self.learner.acquire(fresh, tuple(rollouts))

    async def _patiently(self, what: str, wait: Callable[[], Awaitable[T]]) -> T:
        """Await something for as long as rollouts come to an end meanwhile."""
        faults = self.rolling.faults
        while True:
            num_over = self.rolling.num_over
            try:
                async with asyncio.timeout(faults.rollout_s + faults.reward_s):
                    return await wait()
            except TimeoutError:
                if self.rolling.num_over > num_over:
                    continue
                buffer = self.rolling.buffer
                raise StalledError(
                    f"the trainer waited {faults.rollout_s + faults.reward_s:g} seconds (faults.rollout_s + reward_s) "
                    f"for {what}, and no rollout came to an end: {self.rolling.standing()}; {buffer.num_waiting} "
                    f"groups are finished, {buffer.num_free} slots are free. Go on with tether train --resume"
                ) from None

    async def _publish(self) -> None:
        clock, timeline = self.rolling.clock, self.rolling.timeline
        if self.schedule.settles:
            with timeline.waiting("settle"):
                await self._patiently("generation to settle", self.rolling.buffer.settle)
        began = clock.now()
        with timeline.waiting("publication"):
            publication = await self.watch.timing("publish", self.publisher.publish(self.oldest_live()))
        if publication is not None:
            about = {"version": publication.version, "bytes": publication.num_bytes}
            timeline.span(PUBLICATIONS, "publication", began, clock.now(), **about)
        self.rolling.buffer.free()

    @property
    def num_admitted(self) -> int:
        """Rollouts asked for so far, as the slots count them."""
        return self.rolling.buffer.num_admitted * self.schedule.group_size

    def oldest_live(self) -> int:
        """No token that is still to be trained on has an older version."""
        return min([self.rolling.floor(), self.publisher.version, *self._held_versions()])

    async def _take(self) -> tuple[Group, ...]:
        """The next batch; what happens at one moment is over before one is chosen, unless it was chosen before a
        checkpoint: those are at hand again before training goes on."""
        rolling, buffer = self.rolling, self.rolling.buffer
        if (groups := buffer.take_again()) is not None:
            return groups
        while True:
            await rolling.clock.quiet()
            if rolling.selection.drops and buffer.may_take(self.schedule.prompts_per_step):
                self._drop()  # only now: in place of a group dropped while all wait for a slow one, another would come
            if (groups := buffer.take(self.schedule.prompts_per_step)) is not None:
                return groups
            await buffer.change()

    def _drop(self) -> None:
        for group, fate in self.rolling.selection.dropped(self.rolling.buffer.queued, self.learner.updates):
            for rollout in group.rollouts:
                self.ledger.close(rollout.id, fate)
            self.rolling.buffer.remove(group.index)

    def _close(self, step: Step, report: StepReport, number: int, used_s: float) -> None:
        used = {row.rollout.id for row in step.rows}
        for group in step.groups:
            finished_s = max(rollout.finished_s for rollout in group.rollouts)
            if used_s > finished_s:
                self.rolling.timeline.span(QUEUE, "group", finished_s, used_s, id=group.id)
            for rollout in group.rollouts:
                fate = "trained" if report.updated and rollout.id in used else "filtered:no-advantage"
                self.ledger.close(rollout.id, fate, step=number, used_s=used_s)

    def _standing(self, updates: int) -> Standing:
        """How the pipeline stands; ``updates`` had been made before the batch."""
        rolling, buffer = self.rolling, self.rolling.buffer
        rolling.pool.tell(self.watch, rolling.timeline)
        versions = {member.floor for group in rolling.open.values() for member in group.members if member.engine}
        versions |= self._held_versions()
        gauges = {
            "queue_groups": buffer.num_waiting,
            "in_flight_rollouts": rolling.num_under_way,
            "slots_free": buffer.num_free,
            "versions_in_flight": len(versions),
            "publish_debt": self.learner.updates - self.publisher.version,
        }
        return Standing(
            updates=updates,
            admitted=self.num_admitted,
            gauges=gauges,
            waits=rolling.timeline.take() | ({} if self.curriculum is None else self.curriculum.take()),
        )

    def _held_versions(self) -> set[int]:
        """Of all tokens that are sampled and not used; each group is looked at once."""
        known, self._versions = self._versions, {}
        for group in self.rolling.buffer.held:
            self._versions[group.index] = known.get(group.index) or {
                version for rollout in group.rollouts for version in rollout.completion.version.tolist()
            }
        return set().union(*self._versions.values())

    def _held(self) -> Iterator[Rollout]:
        """Rollouts that are finished and not used."""
        return (rollout for group in self.rolling.buffer.held for rollout in group.rollouts)
