"""The real loops, buffer, pool, publisher and ledger, around engines and a trainer without a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import torch

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator
from tether.errors import NonFiniteError
from tether.journal.ledger import Ledger, LedgerLine
from tether.journal.spans import Span
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.curriculum import Curriculum, CurriculumOptions
from tether.pipeline.faults import Faults
from tether.pipeline.loops import Loops, LoopsState, Packing
from tether.pipeline.packing import Row, Step, credited
from tether.pipeline.pool import Pool
from tether.pipeline.publisher import Publisher
from tether.pipeline.rolling import Rolling
from tether.pipeline.rollouts import Reader, Sampling, Scorer, score_here
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.timeline import Timeline
from tether.placement.inline import Costs, Inline
from tether.ports import Reward
from tether.records import Answer, Grade, Group, Judgement, Prompt
from tether.rewards.composition import alone

from .making import CountingLearner, Manners, ScriptedEngine

Numbers = Callable[[Prompt, str, str], Awaitable[float]]
"""A number for a prompt, a text and a rollout's id."""
REWARD: Reward = lambda prompt, answer: float(len(answer.text) % 3)  # noqa: E731


def prompt(index: int) -> Prompt:
    return Prompt(id=f"p/{index}", text="?", token_ids=(3, 4), reference="!")


class HaltError(Exception):
    """A run is stopped between two steps."""


class BareStep(Step):
    """A step without tensors, for learners that read its groups alone."""

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(credited(self.groups, GRPO(single="zero")))


class BarePacking(Packing):
    """Makes no tensors: a hundred times faster."""

    def step(self, groups: Sequence[Group]) -> Step:
        lengths = [len(rollout.completion) for group in groups for rollout in group.rollouts]
        counts = Denominator(num_tokens=sum(lengths), num_sequences=sum(length > 0 for length in lengths))
        return BareStep(micro_batches=(), denominator=counts, groups=tuple(groups))


def by_numbers(numbers: Numbers) -> Scorer:
    """Scores by what a test says."""

    async def score(prompt: Prompt, answer: Answer) -> Judgement:
        value = await numbers(prompt, answer.text, answer.id)
        return Judgement(reward=value, grades={"it": Grade(value=value)}, is_right=value >= 1)

    return score


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a checkpoint holds of a run, and how much it had told by then."""

    state: LoopsState
    open_lines: tuple[LedgerLine, ...]
    now_s: float
    updates: int
    attempts: int
    version: int
    num_lines: int
    num_batches: int
    """Of the learner."""


@dataclass(kw_only=True)
class World:
    """Everything that a run is made from, besides its schedule."""

    steps: int
    seed: int = 0
    costs: Costs | None = None
    engines: int | None = None
    rows: int | None = None
    """Most completions that an engine is asked for at once."""
    most_tokens: int = 5
    manners: Manners = field(default_factory=Manners)
    skips: Sequence[int] = ()
    reward: Reward = REWARD
    score: Numbers | None = None
    faults: Faults = field(default_factory=Faults)
    selection: Selection = field(default_factory=Selection)
    stop_after: int = 0
    saves: bool = False
    """Whether what a checkpoint would hold is kept after every step."""
    bare: bool = False
    """Whether steps are packed without tensors."""
    buffer: type[GroupBuffer] = GroupBuffer
    prompts: Callable[[int], Prompt] = prompt
    curriculum: CurriculumOptions | None = None
    before_publication: Callable[[Run], Awaitable[None]] | None = None
    """What is done wrong, if anything."""


class Run:
    """One run."""

    def __init__(self, schedule: Schedule, steps: int | World, seed: int = 0, **about: object) -> None:
        world = steps if isinstance(steps, World) else World(steps=steps, seed=seed, **about)  # type: ignore[arg-type]
        numbers = random.Random(world.seed)
        self.schedule, self.world = schedule, world
        costs = [numbers.choice([0.0, numbers.random(), 10 * numbers.random()]) for _ in range(4)]
        num_engines, self.rows = numbers.choice([1, 2, 3]), world.rows or numbers.choice([1, 4, 512])
        names = ("generate_token_s", "reward_s", "train_step_s", "publish_s")
        self.inline = Inline(costs=world.costs or Costs(**dict(zip(names, costs, strict=True))))
        clock = self.inline.clock()
        self.lines: list[LedgerLine] = []
        self.spans: list[Span] = []
        self.told: list[str] = []
        self.saved: dict[int, Saved] = {}
        self.start: Saved | None = None
        self.engines = {
            f"engine-{n}": ScriptedEngine(clock, world.seed, world.manners) for n in range(world.engines or num_engines)
        }
        self.learner = learner = CountingLearner(world.skips, schedule.updates_per_batch)
        self.ledger = Ledger(self.lines.append)
        self.buffer = world.buffer(schedule.slots, world.steps * schedule.prompts_per_step, schedule.window)
        pool = Pool(self.engines, self.rows, clock.now)
        publisher = Publisher(learner, self.engines, clock, in_flight=schedule.in_flight)
        pool.revive = publisher.revive
        chosen = world.curriculum
        packing = BarePacking if world.bare else Packing
        self.loops = Loops(
            steps=world.steps,
            schedule=schedule,
            prompts=world.prompts,
            sampling=Sampling(
                seed=world.seed, group_size=schedule.group_size, temperature=1.0, max_tokens=world.most_tokens
            ),
            packing=packing(advantage=GRPO(single="zero"), token_budget=30, pad_id=0, device="cpu"),
            rolling=Rolling(
                pool=pool,
                reader=Reader(str, frozenset({1})),
                score=score_here(alone(world.reward, "reward")) if world.score is None else by_numbers(world.score),
                buffer=self.buffer,
                ledger=self.ledger,
                clock=clock,
                timeline=Timeline(self.spans.append, clock.now),
                faults=world.faults,
                selection=world.selection,
                loads=publisher.loads,
                updates=lambda: learner.updates,
                task="test",
                told=self.told.append,
            ),
            learner=learner,
            publisher=publisher,
            watch=Stopwatch(),
            ledger=self.ledger,
            dump=lambda rows, error: NonFiniteError(f"{error}; dumped {len(rows)} rows"),
            curriculum=None if chosen is None else Curriculum(chosen, world.prompts, lambda: learner.updates),
        )

    @property
    def versions(self) -> set[int]:
        """Held by the engines."""
        return {engine.version for engine in self.engines.values()}

    async def _main(self) -> None:
        if self.start is None:
            await self.loops.publisher.publish()
        else:
            store = self.learner.store
            await self.loops.publisher.load(store.publish(self.start.version, {"w": torch.zeros(3)}))
            self.loops.restore(self.start.state)
        if self.world.before_publication is not None:
            publish, wrong = self.loops.publisher.publish, self.world.before_publication

            async def wrongly(live: int | None = None) -> object:
                await wrong(self)
                return await publish(live)

            self.loops.publisher.publish = wrongly  # type: ignore[method-assign, assignment]
        async with asyncio.TaskGroup() as tasks:
            loops = self.loops
            others = [tasks.create_task(loop(), name=loop.__name__) for loop in (loops.feed, loops.roll, loops.pack)]
            await loops.train(self.after, self.between)
            for task in others:
                task.cancel()

    async def after(self, number: int, step: Step, report: object, standing: object) -> None:
        assert number == self.loops.done

    async def between(self, number: int) -> None:
        assert number == self.loops.done
        if self.world.saves or number == self.world.stop_after:
            self.saved[number] = Saved(
                state=self.loops.state(),
                open_lines=self.ledger.open_lines,
                now_s=self.loops.rolling.clock.due("train_step", 0.0),
                updates=self.learner.updates,
                attempts=self.learner.attempts,
                version=self.loops.publisher.version,
                num_lines=len(self.lines),
                num_batches=len(self.learner.batches),
            )
        if number == self.world.stop_after:
            raise HaltError

    def go_on_from(self, before: Run, number: int) -> Run:
        """Go on from what a checkpoint after a batch of another run holds."""
        self.start = saved = before.saved[number]
        self.ledger.restore(before.lines[: saved.num_lines], saved.open_lines)
        self.learner.updates, self.learner.attempts = saved.updates, saved.attempts
        return self.go()

    def go(self) -> Run:
        self.inline.run(self._main(), start_s=self.start.now_s if self.start else 0.0)
        return self
