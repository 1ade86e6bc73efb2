"""Runs of the real loops under random schedules, durations, faults and stops, each made from one number."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace

from tests.pipeline.making import Manners, chance
from tests.pipeline.running import Run, World
from tether.errors import RewardError
from tether.pipeline.books import check_balance
from tether.pipeline.buffer import BufferState, GroupBuffer
from tether.pipeline.faults import Faults
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.placement.inline import Costs
from tether.records import Prompt

NEVER = 10**9


class WatchedBuffer(GroupBuffer):
    """Keeps books of its own about who has a slot."""

    def restore(self, state: BufferState) -> None:
        super().restore(state)
        self._holders = {*state.unfinished, *(group.index for group in state.groups)}
        self._leaving = state.used - state.freed

    async def admit(self) -> int:
        index = await super().admit()
        self._holders.add(index)
        assert len(self._holders) + self._leaving <= self._capacity
        return index

    def remove(self, index: int) -> None:
        self._holders.remove(index)
        super().remove(index)

    def retire(self) -> None:
        batch = self._taken[0]
        super().retire()
        self._holders -= set(batch)
        self._leaving += len(batch)

    def free(self) -> None:
        self._leaving = 0
        super().free()


def random_schedule(numbers: random.Random) -> Schedule:
    regime = numbers.choice(["sync", "batch-async", "fully-async", "fully-async", "fully-async"])
    each, prompts = numbers.randint(1, 3), numbers.randint(1, 3)
    plain = Schedule(
        regime=regime,
        lag=each if regime == "sync" else each * numbers.randint(1, 3),
        updates_per_batch=each,
        prompts_per_step=prompts,
        group_size=numbers.choice([1, 2, 2, 3]),
    )
    if regime != "fully-async":
        return plain
    most = numbers.choice([None, plain.least_staleness, plain.least_staleness + numbers.randint(0, 8)])
    bounded = replace(plain, max_staleness=most, in_flight=numbers.choice(["finish", "keep", "recompute", "restart"]))
    return replace(bounded, window=numbers.choice([0, numbers.randint(0, max(0, bounded.slots - bounded.block - 1))]))


@dataclass(frozen=True)
class Judging:
    """Rewards of their own for every rollout; some groups are flat, some rewards raise, some never come."""

    seed: int
    flat: float = 0.0
    raises: float = 0.0
    hangs: float = 0.0

    async def __call__(self, prompt: Prompt, text: str, id: str) -> float:
        if chance(self.seed, id, "hangs") < self.hangs:
            await asyncio.sleep(NEVER)
        if chance(self.seed, id, "raises") < self.raises:
            raise RewardError("no such answer", rollout_id=id)
        return 1.0 if chance(self.seed, prompt.id, "flat") < self.flat else chance(self.seed, id)


def random_world(seed: int, *, has_trouble: bool = True, is_exact: bool = False) -> tuple[Schedule, World]:
    """A schedule and everything else; ``is_exact``: all that is under way can be told to the last bit, which a lost
    engine's revival cannot: engines die under ``ray`` alone, where no run promises to go on to the last bit."""
    numbers = random.Random(f"world {seed}")
    schedule = random_schedule(numbers)
    costs = [numbers.choice([0.0, numbers.random(), 10 * numbers.random()]) for _ in range(4)]
    blocks = schedule.lag // schedule.updates_per_batch

    def perhaps(most: float) -> float:
        return numbers.choice([0.0, most]) if has_trouble else 0.0

    judging = Judging(
        seed, flat=perhaps(0.3), raises=perhaps(0.1), hangs=0.0 if is_exact or costs[1] else perhaps(0.02)
    )
    steps = numbers.randint(1, 3 * blocks + 3)
    loses = 0.0 if is_exact else perhaps(0.05)
    filters = schedule.group_size > 1 and judging.flat
    stale, queue = schedule.lag + numbers.randint(0, 3), schedule.prompts_per_step + numbers.randint(0, 2)
    return schedule, World(
        steps=steps,
        seed=seed,
        costs=Costs(generate_token_s=costs[0], reward_s=costs[1], train_step_s=costs[2], publish_s=costs[3]),
        engines=numbers.randint(1, 3),
        rows=numbers.choice([1, 2, 4, 512]),
        most_tokens=numbers.choice([1, 3, 6]),
        manners=Manners(
            loses=loses,
            hangs=perhaps(0.02),
            load_s=numbers.choice([0.0, numbers.random()]),
            tells=is_exact or numbers.random() < 0.5,
        ),
        skips=[n for n in range(1, 3 * steps + 1) if has_trouble and numbers.random() < 0.1],
        score=judging,
        faults=Faults(rollout_s=5000 * costs[0] + 1, reward_s=2 * costs[1] + 7, most_failed=NEVER),
        selection=Selection(
            flat_groups="filter" if filters else "train",
            most_flat=NEVER,
            drop_staleness=stale if perhaps(0.3) > numbers.random() else None,
            drop_queue=queue if perhaps(0.3) > numbers.random() else None,
        ),
        saves=True,
        bare=True,
        buffer=WatchedBuffer,
    )


def overtaken(run: Run) -> int:
    """By how many younger groups, used in earlier batches, the most overtaken of the used groups was."""
    most, before = 0, list[int]()
    for batch in run.learner.batches:
        most = max([most, *(sum(other > index for other in before) for index in batch)])
        before += batch
    return most


def close(run: Run) -> None:
    """What the controller does when the loops are done."""
    run.ledger.close_rest()
    check_balance(run.ledger, run.loops.num_admitted)


def check(run: Run) -> None:
    """What holds of every run that came to its end."""
    schedule = run.schedule
    assert max(max(seen) for seen in run.learner.seen) <= schedule.bound
    assert min(min(seen) for seen in run.learner.seen) >= 0
    assert len(set(run.learner.used)) == len(run.learner.used)
    assert all(len(batch) == schedule.prompts_per_step for batch in run.learner.batches)
    assert all(engine.most <= run.rows for engine in run.engines.values())
    close(run)
    assert len({line.id for line in run.lines}) == len(run.lines)
    fates = {line.id: line.fate for line in run.lines}
    assert all(fates[id] in ("trained", "filtered:no-advantage") for id in run.learner.used)
