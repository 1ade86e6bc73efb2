"""The real loops around engines and reward workers in processes, and a learner that takes its time in this one."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from tests.pipeline.making import CountingLearner
from tether.core.advantage import GRPO
from tether.journal.ledger import Ledger, LedgerLine
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.faults import Faults
from tether.pipeline.loops import Loops, Packing
from tether.pipeline.packing import Step
from tether.pipeline.pool import Pool
from tether.pipeline.publisher import Publisher
from tether.pipeline.rolling import Rolling
from tether.pipeline.rollouts import Reader, Sampling
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.timeline import Timeline
from tether.pipeline.trainer import StepReport
from tether.placement.deadlines import Deadlines
from tether.placement.parts import Notices
from tether.placement.ray import Ray
from tether.placement.ray_engine import RayEngine
from tether.placement.ray_host import EnginePart
from tether.placement.ray_rewards import RewardPart, RewardPool
from tether.placement.real_time import RealClock
from tether.placement.restarts import Restarts
from tether.records import Prompt

from .parts_on_ray import process
from .small_engine import makers, moody


class SlowLearner(CountingLearner):
    """Takes a while for each step."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self._step_s = step_s

    async def step(self, step: Step) -> StepReport:
        await asyncio.sleep(self._step_s)
        return await super().step(step)

    async def old_publications(self) -> tuple[()]:
        return ()

    async def acquire(self, *_: object) -> None: ...


class Run:
    """Loops with parts on Ray; counts what is asked of each process."""

    def __init__(self, schedule: Schedule, steps: int, rows: int, *, block_s: float, step_s: float, mood: str) -> None:
        self.schedule, self.rows, self.lines, self.calls = schedule, rows, list[LedgerLine](), Counter[str]()
        notices, clock = Notices(), RealClock()
        terms = (Deadlines(), Restarts(3, notices), notices)
        make = partial(EnginePart, makers(block_s), None, "cpu")
        self.engines = {f"engine-{n}": RayEngine(partial(self._start, f"engine-{n}", make), *terms) for n in range(2)}
        self.rewards = RewardPool(partial(self._start, make=partial(RewardPart, moody)), ["reward-0"], *terms)
        for part in (*self.engines.values(), self.rewards):
            part.started()
        self.learner = SlowLearner(step_s)
        self.buffer = GroupBuffer(schedule.slots, steps * schedule.prompts_per_step, schedule.window)
        publisher = Publisher(self.learner, self.engines, clock, in_flight=schedule.in_flight)
        self.ledger = Ledger(self.lines.append)
        self.pool = Pool(self.engines, rows, clock.now)
        self.rolling = Rolling(
            pool=self.pool,
            reader=Reader(lambda ids: mood, frozenset({1})),
            score=self.rewards.score,
            buffer=self.buffer,
            ledger=self.ledger,
            clock=clock,
            timeline=Timeline(None, clock.now),
            faults=Faults(),
            selection=Selection(),
            loads=publisher.loads,
            updates=lambda: self.learner.updates,
            task="test",
        )
        self.loops = Loops(
            steps=steps,
            schedule=schedule,
            prompts=lambda index: Prompt(id=f"p/{index}", text="?", token_ids=(3, 4), reference="!"),
            sampling=Sampling(seed=0, group_size=schedule.group_size, temperature=1.0, max_tokens=32),
            packing=Packing(advantage=GRPO(), token_budget=10**6, pad_id=0, device="cpu"),
            rolling=self.rolling,
            learner=self.learner,
            publisher=publisher,
            watch=Stopwatch(),
            ledger=self.ledger,
            dump=lambda rows, error: error,
        )

    def _start(self, role: str, make):
        started = process(role, make)
        for name in ("call", "post"):
            setattr(started, name, self._counted(getattr(started, name)))
        return started

    def _counted(self, call):
        def asked(name, *args, **options):
            self.calls[name] += 1
            return call(name, *args, **options)

        return asked

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for part in (*self.engines.values(), self.rewards):
            part.end()

    def go(self, look=lambda: None) -> None:
        """To the end; ``look`` is called a hundred times a second."""

        async def main():
            await self.loops.publisher.publish()

            async def after_step(number, step, report, standing):
                pass

            async def between(number):
                pass

            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(loop()) for loop in (self.loops.feed, self.loops.roll, self._looking(look))]
                packing = tasks.create_task(self.loops.pack())
                await self.loops.train(after_step, between)
                await packing
                for task in others:
                    task.cancel()

        Ray().run(main())

    def _looking(self, look):
        async def looking():
            while True:
                look()
                await asyncio.sleep(0.01)

        return looking
