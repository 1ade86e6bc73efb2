"""The four loops of a run: feed, roll, pack, train. Each says what it consumes, waits for and unblocks.

::

    feed --asked--> roll --groups--> buffer --groups--> pack --step--> train --version--> publisher
      ^                                                                  |
      +------------------------- free slots (after publication) --------+
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tether.core.advantage import Advantage
from tether.errors import NonFiniteError, RewardError
from tether.journal.ledger import Ledger
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.packing import Row, Step, credited, pack
from tether.pipeline.publisher import Publisher
from tether.pipeline.rollouts import Asked, Judge, Sampling, ask
from tether.pipeline.schedule import Schedule
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import StepReport, Trainer
from tether.ports import Clock, GenerationRequest, RolloutEngine
from tether.records import Completion, Group, Prompt

AfterStep = Callable[[int, Step, StepReport], Awaitable[None]]
Dump = Callable[[Sequence[Row], NonFiniteError], NonFiniteError]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How groups become steps."""

    advantage: Advantage
    token_budget: int
    pad_id: int
    device: str

    def step(self, groups: Sequence[Group]) -> Step:
        """One step from its groups."""
        return pack(groups, self.advantage, token_budget=self.token_budget, pad_id=self.pad_id, device=self.device)


@dataclass(slots=True, kw_only=True)
class Loops:
    """One run's loops and what flows between them."""

    steps: int
    schedule: Schedule
    prompts: Callable[[int], Prompt]
    sampling: Sampling
    packing: Packing
    engine: RolloutEngine
    wave: int
    """Most rollouts asked of the engine at once."""
    judge: Judge
    trainer: Trainer
    publisher: Publisher
    clock: Clock
    watch: Stopwatch
    ledger: Ledger
    dump: Dump
    """Stores a batch that holds a non-finite number; gives the error that says where."""
    buffer: GroupBuffer = field(init=False)
    asked: asyncio.Queue[Asked] = field(init=False)
    packed: asyncio.Queue[Step] = field(init=False)

    def __post_init__(self) -> None:
        self.buffer = GroupBuffer(self.schedule.slots)
        self.asked = asyncio.Queue()
        self.packed = asyncio.Queue(maxsize=1)

    @property
    def num_groups(self) -> int:
        """Groups of the whole run."""
        return self.steps * self.schedule.prompts_per_step

    async def feed(self) -> None:
        """Consumes prompts. Waits for a free slot. Unblocks roll."""
        for _ in range(self.num_groups):
            index = await self.buffer.admit()
            asked = ask(index, self.prompts(index), self.sampling, self.clock.now())
            for request in asked.requests:
                self.ledger.admit(request.id, asked.prompt.id, asked.id, asked.started_s)
            self.asked.put_nowait(asked)

    async def roll(self) -> None:
        """Consumes asked groups. Waits for the engine and the reward. Unblocks pack, and a publication in waiting."""
        left = self.num_groups
        while left:
            wave = await self._next_wave()
            requests = [request for asked in wave for request in asked.requests]
            completions = await self._generate(requests)
            await self.clock.spend("reward", len(requests))
            for asked in wave:
                mine, completions = completions[: len(asked.requests)], completions[len(asked.requests) :]
                try:
                    with self.watch.running("reward"):
                        group = self.judge.group(asked, mine, self.clock.now())
                except RewardError as error:
                    self.ledger.close(error.rollout_id, "failed:reward")
                    raise
                for rollout in group.rollouts:
                    self.ledger.finish(rollout)
                await self.buffer.finish(group)
                await asyncio.sleep(0)  # between groups an interrupt may come in
            left -= len(wave)

    async def pack(self) -> None:
        """Consumes finished groups, in the order of admission. Waits for a step's worth. Unblocks train."""
        for _ in range(self.steps):
            groups = await self.buffer.take(self.schedule.prompts_per_step)
            try:
                with self.watch.running("pack"):
                    step = self.packing.step(groups)
            except NonFiniteError as error:
                raise self.dump(credited(groups, self.packing.advantage), error) from error
            await self.packed.put(step)

    async def train(self, after_step: AfterStep) -> None:
        """Consumes steps. Waits for a step, and before a publication for generation to settle. Unblocks feed."""
        for number in range(1, self.steps + 1):
            step = await self.packed.get()
            used_s = self.clock.now()
            try:
                with self.watch.running("train"):
                    report = self.trainer.step(step)
            except NonFiniteError as error:
                raise self.dump(step.rows, error) from error
            used = {row.rollout.id for row in step.rows}
            for group in step.groups:
                for rollout in group.rollouts:
                    fate = "trained" if report.updated and rollout.id in used else "filtered:no-advantage"
                    self.ledger.close(rollout.id, fate, step=number, used_s=used_s)
            await self.clock.spend("train_step")  # after the books are closed: a run may be stopped here
            await after_step(number, step, report)
            if self.schedule.publishes_after(number):
                await self.buffer.settle()
                await self.watch.timing("publish", self.publisher.publish(self.trainer.updates))
                await self.buffer.free(self.schedule.lag * self.schedule.prompts_per_step)

    async def _generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        try:
            return await self.watch.timing("generate", self.engine.generate(requests))
        except NonFiniteError as error:
            if error.rollout_id:
                self.ledger.close(error.rollout_id, "failed:non-finite")
            raise

    async def _next_wave(self) -> list[Asked]:
        """All groups asked for by now, at least one and at most a wave."""
        wave = [await self.asked.get()]
        size = len(wave[0].requests)
        while not self.asked.empty() and size + self.schedule.group_size <= self.wave:
            wave.append(self.asked.get_nowait())
            size += len(wave[-1].requests)
        return wave
