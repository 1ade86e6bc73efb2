"""The real loops around an engine that decodes nothing and a trainer that counts: what is measured is the pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator
from tether.errors import NonFiniteError, RewardError
from tether.journal.ledger import Ledger, LedgerLine
from tether.pipeline.books import check_balance
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.faults import Faults
from tether.pipeline.loops import Loops, Packing
from tether.pipeline.packing import Row, Step, credited
from tether.pipeline.pool import Pool
from tether.pipeline.publisher import Publisher
from tether.pipeline.rolling import Rolling
from tether.pipeline.rollouts import Reader, Sampling
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.timeline import Timeline
from tether.pipeline.trainer import StepReport
from tether.ports import Clock, EngineCapabilities, GenerationRequest, InFlight, Publication
from tether.records import Answer, Completion, Grade, Group, Judgement, Metric, Prompt
from tether.weights.memory import MemoryStore

Seconds = Callable[[str], float]
"""How long a rollout is sampled, by its id."""
WEIGHTS = {"w": torch.zeros(3)}


class PacedEngine:
    """Every completion has two tokens and takes the seconds it is told."""

    def __init__(self, clock: Clock, seconds: Seconds) -> None:
        self._clock, self._seconds = clock, seconds
        self.version = -1
        self.busy_s = 0.0
        self.under_way = self.most = 0
        self.capabilities = EngineCapabilities(logp="processed", entropy=True, alternatives=False, token_versions=True)
        self._ids, self._numbers = np.array([2, 2], np.int32), np.array([-0.5, -0.5], np.float32)

    async def generate(self, request: GenerationRequest) -> Completion:
        began = self.version
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self._clock.until(self._clock.now() + self._seconds(request.id))
        self.under_way -= 1
        version = np.array([began, self.version], np.int32)
        return Completion(
            token_ids=self._ids, logp=self._numbers, entropy=self._numbers, version=version, finish="stop"
        )

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return []

    async def load(self, publication: Publication, in_flight: InFlight = "keep") -> str:
        self.version = publication.version
        return publication.fingerprint

    async def progress(self) -> Mapping[str, Completion]:
        return {}

    def in_flight(self) -> None:
        return None

    def restore(self, flight: Mapping[str, Any]) -> None:
        pass


class Counter:
    """A learner that counts its updates, each of which takes the seconds it is told."""

    remark, sharing = "", None

    def __init__(self, clock: Clock, step_s: float) -> None:
        self._clock, self._step_s = clock, step_s
        self.updates = 0
        self.stalest = 0
        self.store = MemoryStore("float32", keep=1)

    async def step(self, step: Step) -> StepReport:
        versions = (int(r.completion.version[0]) for group in step.groups for r in group.rollouts)
        self.stalest = max(self.stalest, self.updates - min(versions))
        await self._clock.until(self._clock.now() + self._step_s)
        self.updates += 1
        return StepReport(updated=True, metrics={"policy/lr": Metric(0.0)}, logp={}, staleness={})

    async def publish(self, live: int | None = None) -> Publication:
        return self.store.publish(self.updates, WEIGHTS)


class BareStep(Step):
    """A step without tensors."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(credited(self.groups, GRPO()))


class BarePacking(Packing):
    """Makes none."""

    def step(self, groups: Sequence[Group]) -> Step:
        count = sum(len(group.rollouts) for group in groups)
        return BareStep(
            micro_batches=(), denominator=Denominator(num_tokens=2 * count, num_sequences=count), groups=tuple(groups)
        )


class Judged:
    """A reward by rollout id; every so many raise, and every so many groups are flat."""

    def __init__(self, fails: int = 0, flat: int = 0) -> None:
        self._fails, self._flat = fails, flat

    async def __call__(self, prompt: Prompt, answer: Answer) -> Judgement:
        group, member = map(int, answer.id.removeprefix("g").split("/"))
        if self._fails and (31 * group + member) % self._fails == 0:
            raise RewardError("no answer", rollout_id=answer.id)
        value = 0.0 if self._flat and group % self._flat == 0 else float(member % 2)
        return Judgement(reward=value, grades={"it": Grade(value=value)}, is_right=value >= 1)


def loops_of(
    schedule: Schedule,
    steps: int,
    clock: Clock,
    *,
    seconds: Seconds,
    step_s: float = 0.0,
    engines: int = 1,
    rows: int = 10**6,
    judged: Judged | None = None,
    write: Callable[[LedgerLine], object] = lambda line: None,
) -> Loops:
    """Loops of a run that filters flat groups, with a ledger that writes where it is told."""
    pool_of = {f"engine-{n}": PacedEngine(clock, seconds) for n in range(engines)}
    learner, ledger = Counter(clock, step_s), Ledger(write)
    publisher = Publisher(learner, pool_of, clock, in_flight=schedule.in_flight)
    prompt = Prompt(id="p", text="?", token_ids=(3, 4), reference="!")
    return Loops(
        steps=steps,
        schedule=schedule,
        prompts=lambda index: prompt,
        sampling=Sampling(seed=0, group_size=schedule.group_size, temperature=1.0, max_tokens=2),
        packing=BarePacking(advantage=GRPO(), token_budget=1, pad_id=0, device="cpu"),
        rolling=Rolling(
            pool=Pool(pool_of, rows, clock.now),
            reader=Reader(lambda ids: "2 2", frozenset({1})),
            score=judged or Judged(),
            buffer=GroupBuffer(schedule.slots, steps * schedule.prompts_per_step, schedule.window),
            ledger=ledger,
            clock=clock,
            timeline=Timeline(None, clock.now),
            faults=Faults(),
            selection=Selection(flat_groups="filter"),
            loads=publisher.loads,
            updates=lambda: learner.updates,
            task="benchmark",
        ),
        learner=learner,
        publisher=publisher,
        watch=Stopwatch(),
        ledger=ledger,
        dump=lambda rows, error: NonFiniteError(str(error)),
    )


async def run(loops: Loops, after: Callable[[int], object] = lambda number: None) -> None:
    """What the controller does, without a journal; raises if the books do not close."""

    async def after_step(number: int, *about: object) -> None:
        after(number)

    async def between(number: int) -> None:
        pass

    await loops.publisher.publish()
    async with asyncio.TaskGroup() as tasks:
        others = [tasks.create_task(loop()) for loop in (loops.feed, loops.roll, loops.pack)]
        await loops.train(after_step, between)
        for task in others:
            task.cancel()
    loops.ledger.close_rest()
    check_balance(loops.ledger, loops.num_admitted)
