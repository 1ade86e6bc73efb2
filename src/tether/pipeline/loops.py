"""The four loops of a run: feed, roll, pack, train. Each says what it consumes, waits for and unblocks.

::

    feed --asked--> roll --groups--> buffer --groups--> pack --step--> train --version--> publisher
      ^                                                                  |
      +------------------------- free slots (after publication) --------+
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tether.core.advantage import Advantage
from tether.errors import EngineLostError, NonFiniteError, RewardError
from tether.journal.ledger import Ledger
from tether.models.sharing import PromptSharing
from tether.pipeline.buffer import BufferState, GroupBuffer
from tether.pipeline.learner import Learner
from tether.pipeline.packing import Row, Step, credited, pack
from tether.pipeline.publisher import Publisher
from tether.pipeline.rollouts import Asked, Judge, Sampling, ask
from tether.pipeline.schedule import Schedule
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import StepReport
from tether.ports import Clock, GenerationRequest, RolloutEngine
from tether.records import Completion, Group, Prompt

AfterStep = Callable[[int, Step, StepReport], Awaitable[None]]
Between = Callable[[int], Awaitable[None]]
Dump = Callable[[Sequence[Row], NonFiniteError], NonFiniteError]


@dataclass(slots=True, kw_only=True)
class Wave:
    """Groups asked of the engine together. A group leaves it as soon as the buffer has it."""

    asked: list[Asked]
    flight: Mapping[str, Any] | None = None
    """Where the engine stood, in a wave that was under way when a checkpoint was made."""
    completions: list[Completion] = field(default_factory=list)
    """Of the groups left, in their order, once the engine has answered."""
    judged_s: float = 0.0
    """When the rewards of those completions are due."""

    @property
    def requests(self) -> list[GenerationRequest]:
        """Of the groups left."""
        return [request for asked in self.asked for request in asked.requests]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopsState:
    """What the loops hold between two steps."""

    done: int
    """Steps."""
    buffer: BufferState
    asked: tuple[Asked, ...]
    """Groups that no wave has taken yet."""
    wave: Wave | None


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
    schedule: Schedule
    prompts: Callable[[int], Prompt]
    sampling: Sampling
    packing: Packing
    engine: RolloutEngine
    wave_size: int
    """Most rollouts asked of the engine at once."""
    judge: Judge
    learner: Learner
    publisher: Publisher
    clock: Clock
    watch: Stopwatch
    ledger: Ledger
    dump: Dump
    """Stores a batch that holds a non-finite number; gives the error that says where."""
    done: int = field(init=False, default=0)
    """Steps that are done."""
    buffer: GroupBuffer = field(init=False)
    asked: deque[Asked] = field(init=False, default_factory=deque)
    has_asked: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    wave: Wave | None = field(init=False, default=None)
    packed: asyncio.Queue[Step] = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = GroupBuffer(self.schedule.slots)
        self.packed = asyncio.Queue(maxsize=1)

    def state(self) -> LoopsState:
        """What the loops hold now; between two steps, and nowhere else."""
        wave = None
        if self.wave is not None and self.wave.asked:
            completions = list(self.wave.completions)
            flight = None if completions else self.engine.in_flight()
            wave = replace(self.wave, asked=list(self.wave.asked), completions=completions, flight=flight)
        return LoopsState(
            done=self.done,
            buffer=self.buffer.state(),
            asked=tuple(self.asked),
            wave=wave,
        )

    def restore(self, state: LoopsState) -> None:
        """Go on from a state; what a loop had in its hands and cannot be told is done again, under the same ids."""
        self.done = state.done
        self.buffer = GroupBuffer(self.schedule.slots, state.buffer)
        self.asked = deque(state.asked)
        self.wave = state.wave

    @property
    def num_groups(self) -> int:
        """Groups of the whole run."""
        return self.steps * self.schedule.prompts_per_step

    async def feed(self) -> None:
        """Consumes prompts. Waits for a free slot. Unblocks roll."""
        while self.buffer.num_admitted < self.num_groups:
            index = await self.buffer.admit()
            asked = ask(index, self.prompts(index), self.sampling, self.clock.now())
            for request in asked.requests:
                self.ledger.admit(request.id, asked.prompt.id, asked.id, asked.started_s)
            self.asked.append(asked)
            self.has_asked.set()

    async def roll(self) -> None:
        """Consumes asked groups. Waits for the engine and the reward. Unblocks pack, and a publication in waiting."""
        while self.buffer.num_done < self.num_groups:
            if self.wave is None:
                self.wave = await self._next_wave()
            wave = self.wave
            if not wave.completions:
                wave.completions = await self._generate(wave)
                wave.judged_s = self.clock.due("reward", float(len(wave.completions)))
            await self.clock.until(wave.judged_s)
            while wave.asked:
                self._judge_first(wave)
                await asyncio.sleep(0)  # between groups an interrupt may come in
            self.wave = None

    async def pack(self) -> None:
        """Consumes finished groups, in the order of admission. Waits for a step's worth. Unblocks train."""
        for _ in range(self.done, self.steps):
            groups = await self.buffer.take(self.schedule.prompts_per_step)
            try:
                with self.watch.running("pack"):
                    step = self.packing.step(groups)
            except NonFiniteError as error:
                raise self.dump(credited(groups, self.packing.advantage), error) from error
            await self.packed.put(step)

    async def train(self, after_step: AfterStep, between: Between) -> None:
        """Consumes steps. Waits for a step, and before a publication for generation to settle. Unblocks feed."""
        await self.clock.quiet()  # the others stand where they stood: a run that goes on is as one that never stopped
        for number in range(self.done + 1, self.steps + 1):
            step = await self.packed.get()
            used_s = self.clock.now()
            try:
                report = await self.watch.timing("train", self.learner.step(step))
            except NonFiniteError as error:
                raise self.dump(step.rows, error) from error
            used = {row.rollout.id for row in step.rows}
            for group in step.groups:
                for rollout in group.rollouts:
                    fate = "trained" if report.updated and rollout.id in used else "filtered:no-advantage"
                    self.ledger.close(rollout.id, fate, step=number, used_s=used_s)
            self.buffer.retire(len(step.groups))
            self.done = number
            await self.clock.spend("train_step")  # after the books are closed: a run may be stopped here
            await after_step(number, step, report)
            if self.schedule.publishes_after(number):
                await self.buffer.settle()
                await self.watch.timing("publish", self.publisher.publish())
                self.buffer.free(self.schedule.lag * self.schedule.prompts_per_step)
            await self.clock.quiet()
            await between(number)

    async def _generate(self, wave: Wave) -> list[Completion]:
        flight, wave.flight = wave.flight, None
        while True:
            try:
                return await self.watch.timing("generate", self.engine.generate(wave.requests, flight))
            except EngineLostError:  # a new one stands in its place; it is asked the same, under the same ids
                flight = None
                await self.watch.timing("publish", self.publisher.load_again())
            except NonFiniteError as error:
                if error.rollout_id:
                    self.ledger.close(error.rollout_id, "failed:non-finite")
                raise

    def _judge_first(self, wave: Wave) -> None:
        """Judge the first group of a wave and hand it to the buffer."""
        asked = wave.asked[0]
        count = len(asked.requests)
        try:
            with self.watch.running("reward"):
                group = self.judge.group(asked, wave.completions[:count], self.clock.now())
        except RewardError as error:
            self.ledger.close(error.rollout_id, "failed:reward")
            raise
        for rollout in group.rollouts:
            self.ledger.finish(rollout)
        self.buffer.finish(group)
        del wave.asked[0], wave.completions[:count]

    async def _next_wave(self) -> Wave:
        """All groups asked for by now, at least one and at most a wave."""
        while not self.asked:
            self.has_asked.clear()
            await self.has_asked.wait()
        asked = [self.asked.popleft()]
        size = len(asked[0].requests)
        while self.asked and size + self.schedule.group_size <= self.wave_size:
            asked.append(self.asked.popleft())
            size += len(asked[-1].requests)
        return Wave(asked=asked)
