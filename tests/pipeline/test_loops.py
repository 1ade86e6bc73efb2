import asyncio
import random
from collections import Counter

import pytest
import torch

from tether.core.advantage import GRPO
from tether.errors import NonFiniteError, RewardError, TetherError
from tether.journal.ledger import Ledger, LedgerLine
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.faults import Faults
from tether.pipeline.loops import Loops, Packing
from tether.pipeline.pool import Pool
from tether.pipeline.publisher import Publisher
from tether.pipeline.rolling import Rolling
from tether.pipeline.rollouts import Judge, Sampling, score_here
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.timeline import Timeline
from tether.placement.inline import Costs, Inline
from tether.records import Prompt

from .making import CountingLearner, ScriptedEngine

LAGS = (1, 2, 3, 8)


def prompt(index: int) -> Prompt:
    return Prompt(id=f"p/{index}", text="?", token_ids=(3, 4), reference="!")


class HaltError(Exception):
    """A run is stopped between two steps."""


class Run:
    """The real loops, buffer, publisher and ledger, around an engine and a trainer without a model."""

    def __init__(
        self,
        schedule: Schedule,
        steps: int,
        seed: int = 0,
        *,
        skips=(),
        reward=None,
        stop_after=0,
        faults: Faults | None = None,
        selection: Selection | None = None,
    ) -> None:
        numbers = random.Random(seed)
        costs = [numbers.choice([0.0, numbers.random(), 10 * numbers.random()]) for _ in range(4)]
        inline = Inline(
            costs=Costs(generate_token_s=costs[0], reward_s=costs[1], train_step_s=costs[2], publish_s=costs[3])
        )
        clock = inline.clock()
        self.lines: list[LedgerLine] = []
        num_engines = numbers.choice([1, 2, 3])
        self.engines = {f"engine-{n}": ScriptedEngine(clock, seed) for n in range(num_engines)}
        self.learner = learner = CountingLearner(frozenset(skips))
        self.inline = inline
        self.stop_after = stop_after
        self.start_version: int | None = None
        self.start_s = 0.0
        reward = reward or (lambda prompt, text: float(len(text) % 3))
        ledger = Ledger(self.lines.append)
        pool = Pool(self.engines, numbers.choice([1, 4, 512]), clock.now)
        publisher = Publisher(self.learner, self.engines, clock, in_flight=schedule.in_flight)
        self.loops = Loops(
            steps=steps,
            schedule=schedule,
            prompts=prompt,
            sampling=Sampling(seed=seed, group_size=schedule.group_size, temperature=1.0, max_tokens=5),
            packing=Packing(advantage=GRPO(), token_budget=30, pad_id=0, device="cpu"),
            rolling=Rolling(
                pool=pool,
                judge=Judge(reward, str, frozenset({1})),
                score=score_here(reward),
                buffer=GroupBuffer(schedule.slots, steps * schedule.prompts_per_step, schedule.window),
                ledger=ledger,
                clock=clock,
                timeline=Timeline(None, clock.now),
                faults=faults or Faults(),
                selection=selection or Selection(),
                loads=publisher.loads,
                updates=lambda: learner.updates,
                task="test",
            ),
            learner=self.learner,
            publisher=publisher,
            watch=Stopwatch(),
            ledger=ledger,
            dump=lambda rows, error: NonFiniteError(f"{error}; dumped {len(rows)} rows"),
        )

    @property
    def versions(self) -> set[int]:
        """Held by the engines."""
        return {engine.version for engine in self.engines.values()}

    async def _main(self) -> None:
        if self.start_version is None:
            await self.loops.publisher.publish()
        else:
            weights = {"w": torch.zeros(3)}
            await self.loops.publisher.load(self.learner.store.publish(self.start_version, weights))
            self.loops.restore(self.loops_state)
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(loop) for loop in (self.loops.feed(), self.loops.roll(), self.loops.pack())]
            await self.loops.train(self.after, self.between)
            for task in others:
                task.cancel()

    async def after(self, number, step, report, standing) -> None:
        assert number == self.loops.done
        assert standing.gauges["slots_free"] >= 0

    async def between(self, number) -> None:
        assert number == self.loops.done
        if number == self.stop_after:
            self.state = self.loops.state()
            self.now_s = self.loops.rolling.clock.due("train_step", 0.0)
            self.open_lines = self.loops.ledger.open_lines
            raise HaltError

    def go_on_from(self, before: "Run") -> "Run":
        """Take over everything that a checkpoint holds of a run that was stopped."""
        self.loops_state, self.start_s = before.state, before.now_s
        self.loops.ledger.restore(before.lines, before.open_lines)
        self.learner.updates = before.learner.updates
        (self.start_version,) = before.versions
        return self.go()

    def go(self) -> "Run":
        self.inline.run(self._main(), start_s=self.start_s)
        return self


def expected(schedule: Schedule, steps: int) -> list[set[int]]:
    """Staleness of each step's tokens: its place in its block, a lag more from the second block on."""
    if schedule.regime == "sync":
        return [{0}] * steps
    return [{s % schedule.lag + (schedule.lag if s >= schedule.lag else 0)} for s in range(steps)]


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("seed", range(5))
def test_staleness_is_lag_to_twice_lag_less_one_whatever_the_costs(lag, seed):
    schedule = Schedule(lag=lag, prompts_per_step=1 + seed % 3, group_size=2)
    steps = 3 * lag + seed % lag  # also numbers of steps that the lag does not divide
    run = Run(schedule, steps, seed).go()
    assert run.learner.seen == expected(schedule, steps)
    assert max(max(seen) for seen in run.learner.seen) == schedule.bound


@pytest.mark.parametrize("seed", range(5))
def test_staleness_is_zero_in_sync(seed):
    schedule = Schedule(regime="sync", lag=1, prompts_per_step=1 + seed % 3, group_size=3)
    assert Run(schedule, 7, seed).go().learner.seen == [{0}] * 7


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_run_may_end_inside_its_first_block(steps):
    run = Run(Schedule(lag=8, prompts_per_step=2, group_size=2), steps).go()
    assert run.learner.seen == [{s} for s in range(steps)]
    assert run.versions == {0}


@pytest.mark.parametrize("seed", range(8))
def test_every_rollout_is_admitted_used_and_closed_exactly_once_in_order(seed):
    schedule = Schedule(lag=1 + seed % 4, prompts_per_step=2, group_size=3)
    run = Run(schedule, 9, seed).go()
    ids = [f"g{g}/{m}" for g in range(18) for m in range(3)]
    assert run.learner.used == ids
    assert [line.id for line in run.lines] == ids
    assert run.loops.ledger.balance() == {"trained": len(ids)}
    assert all(line.started_s <= line.finished_s <= line.used_s for line in run.lines)
    assert [line.step for line in run.lines] == [1 + g // 2 for g in range(18) for _ in range(3)]


def test_a_step_that_makes_no_update_makes_no_version_and_filters_its_rollouts():
    schedule = Schedule(lag=2, prompts_per_step=1, group_size=2)
    run = Run(schedule, 8, skips=(1, 2, 6)).go()
    fates = {step: {line.fate for line in run.lines if line.step == step} for step in range(1, 9)}
    assert {step for step, fate in fates.items() if fate == {"filtered:no-advantage"}} == {1, 2, 6}
    assert run.learner.updates == 5
    assert run.versions == {5}
    assert all(max(seen) <= schedule.bound for seen in run.learner.seen)


def test_a_block_without_an_update_publishes_nothing_and_goes_on():
    run = Run(Schedule(lag=2, prompts_per_step=1, group_size=2), 6, skips=range(1, 7)).go()
    assert run.versions == {0}
    assert run.loops.ledger.balance() == {"filtered:no-advantage": 12}


def test_a_reward_that_raises_closes_its_rollout_and_no_other():
    def reward(prompt: Prompt, text: str) -> float:
        if prompt.id == "p/3":
            raise KeyError("no such answer")
        return 1.0

    run = Run(Schedule(lag=2, prompts_per_step=2, group_size=2), 6, reward=reward)
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    assert stopped.group_contains(RewardError, match="g3/0")
    run.loops.ledger.close_rest()
    assert [line.id for line in run.lines if line.fate == "failed:reward"] == ["g3/0"]
    assert len({line.id for line in run.lines}) == len(run.lines)
    assert Counter(line.fate for line in run.lines) == run.loops.ledger.balance()


def test_a_batch_that_is_not_finite_is_dumped_before_the_run_stops():
    run = Run(Schedule(lag=1, prompts_per_step=2, group_size=2), 3)

    async def explode(step):
        raise NonFiniteError("logp is nan")

    run.learner.step = explode
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    assert stopped.group_contains(NonFiniteError, match="logp is nan; dumped 4 rows")


def test_what_an_engine_reports_as_not_finite_is_dumped_too():
    run = Run(Schedule(lag=1, prompts_per_step=2, group_size=2), 3)
    generate = run.engine.generate

    async def broken(requests, flight):
        completions = await generate(requests)
        completions[0].logp[0] = float("nan")
        return completions

    run.engine.generate = broken
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    assert stopped.group_contains(NonFiniteError, match=r"logp of the engine is nan at token 0.*dumped 4 rows")


@pytest.mark.parametrize("lie", ["fingerprint", "version"])
def test_an_engine_that_does_not_hold_what_was_sent_stops_the_run(lie):
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=2), 3)
    load = run.engine.load

    async def lying(publication):
        received = await load(publication)
        if lie == "version":
            run.engine._version -= 1
        return "f00d" if lie == "fingerprint" else received

    run.engine.load = lying
    with pytest.raises(TetherError, match="self-check 'acknowledgement' failed at version 0"):
        run.go()


def test_generations_of_a_group_are_never_split_over_waves():
    run = Run(Schedule(lag=2, prompts_per_step=3, group_size=4), 4)
    run.loops.wave_size = 5
    waves = []
    generate = run.engine.generate

    async def watched(requests, flight):
        waves.append([request.id.partition("/")[0] for request in requests])
        return await generate(requests)

    run.engine.generate = watched
    run.go()
    assert all(set(Counter(wave).values()) == {4} for wave in waves)
    assert len(waves) == 12


@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_goes_on_skips_no_rollout_uses_none_twice_and_keeps_the_bound(seed):
    schedule = Schedule(lag=1 + seed % 4, prompts_per_step=1 + seed % 3, group_size=2)
    steps = 4 * schedule.lag + 1
    whole = Run(schedule, steps, seed).go()
    for stop_after in range(1, steps):
        before = Run(schedule, steps, seed, stop_after=stop_after)
        with pytest.raises(BaseExceptionGroup) as halted:
            before.go()
        assert halted.group_contains(HaltError)
        after = Run(schedule, steps, seed).go_on_from(before)
        assert before.learner.used + after.learner.used == whole.learner.used
        assert before.learner.seen + after.learner.seen == whole.learner.seen
        assert [line.id for line in before.lines + after.lines] == [line.id for line in whole.lines]
        assert after.loops.ledger.balance() == whole.loops.ledger.balance()
