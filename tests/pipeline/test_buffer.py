import asyncio
import random
from dataclasses import dataclass, field

import pytest

from tether.errors import StalledError
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.schedule import Schedule
from tether.placement.virtual_time import VirtualLoop
from tether.records import Group

NUM_SCHEDULES = 2000


@dataclass
class Life:
    """One run of a producer and a consumer around a buffer, with random durations everywhere."""

    schedule: Schedule
    steps: int
    numbers: random.Random
    settles: bool = True
    frees_early: bool = False
    version: int = 0
    updates: int = 0
    made_by: dict[int, list[int]] = field(default_factory=dict)
    taken: list[int] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    most_open: int = 0

    async def nap(self) -> None:
        await asyncio.sleep(self.numbers.choice([0.0, 0.0, self.numbers.random(), 10 * self.numbers.random()]))

    async def run(self) -> None:
        self.buffer = GroupBuffer(self.schedule.slots)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.feed(tasks))
            tasks.create_task(self.train())

    async def feed(self, tasks: asyncio.TaskGroup) -> None:
        for _ in range(self.steps * self.schedule.prompts_per_step):
            index = await self.buffer.admit()
            self.most_open = max(self.most_open, index + 1 - len(self.taken))
            tasks.create_task(self.generate(index))
            await self.nap()

    async def generate(self, index: int) -> None:
        """Weights may change between two tokens; the group finishes when it likes."""
        self.made_by[index] = [self.version]
        for _ in range(self.numbers.randint(0, 2)):
            await self.nap()
            self.made_by[index].append(self.version)
        self.buffer.finish(Group(id=f"g{index}", index=index, rollouts=()))

    async def train(self) -> None:
        block = self.schedule.lag * self.schedule.prompts_per_step
        for number in range(1, self.steps + 1):
            groups = await self.buffer.take(self.schedule.prompts_per_step)
            self.taken += [group.index for group in groups]
            self.staleness += [self.updates - v for group in groups for v in self.made_by[group.index]]
            await self.nap()
            self.buffer.retire(len(groups))
            self.updates += 1
            if not self.schedule.publishes_after(number):
                continue
            if self.settles:
                await self.buffer.settle()
                assert self.buffer.num_in_generation == 0
            if self.frees_early:
                self.buffer.free(block)
            await self.nap()
            self.version = self.updates
            if not self.frees_early:
                self.buffer.free(block)


def random_life(seed: int, **how: bool) -> Life:
    numbers = random.Random(seed)
    regime = numbers.choice(["sync", "batch-async", "batch-async"])
    lag = 1 if regime == "sync" else numbers.randint(1, 4)
    schedule = Schedule(regime=regime, lag=lag, prompts_per_step=numbers.randint(1, 3), group_size=1)
    return Life(schedule, numbers.randint(1, 4 * lag + 2), numbers, **how)


def lives(count: int, **how: bool):
    """Each life that came to its end, one after the other in one loop."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        for seed in range(count):
            life = random_life(seed, **how)
            runner.run(life.run())
            yield seed, life


@pytest.fixture(scope="module")
def ended() -> list[tuple[int, Life]]:
    """Half with weights that change between generations only, half with weights that change inside them, too."""
    return [*lives(NUM_SCHEDULES // 2), *lives(NUM_SCHEDULES // 2, settles=False)]


def test_staleness_never_exceeds_the_bound_under_random_schedules(ended):
    for seed, life in ended:
        assert max(life.staleness) <= life.schedule.bound, seed
        assert min(life.staleness) >= 0, seed


def test_every_group_is_taken_exactly_once_and_in_the_order_of_admission(ended):
    for seed, life in ended:
        assert life.taken == list(range(life.steps * life.schedule.prompts_per_step)), seed
        assert life.buffer.num_in_generation == len(life.buffer.state().groups) == 0, seed


def test_no_more_groups_are_under_way_than_there_are_slots(ended):
    assert all(life.most_open <= life.schedule.slots for _, life in ended)


def test_slots_freed_before_publication_break_the_bound():
    broken = [
        life.schedule.regime for _, life in lives(200, frees_early=True) if max(life.staleness) > life.schedule.bound
    ]
    assert {"sync", "batch-async"} == set(broken)


def buffered(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def test_taking_frees_no_slot():
    async def main():
        buffer = GroupBuffer(capacity=1)
        buffer.finish(Group(id="g0", index=await buffer.admit(), rollouts=()))
        await buffer.take(1)
        await buffer.admit()

    with pytest.raises(StalledError, match=r"GroupBuffer\.admit"):
        buffered(main())


def test_a_slot_is_held_while_its_group_is_generated():
    async def main():
        buffer = GroupBuffer(capacity=2)
        assert [await buffer.admit(), await buffer.admit()] == [0, 1]
        assert buffer.num_in_generation == 2
        await buffer.admit()

    with pytest.raises(StalledError, match=r"GroupBuffer\.admit"):
        buffered(main())


@pytest.mark.parametrize("wrong", ["twice", "never admitted", "taken already"])
def test_a_group_is_finished_once_and_only_after_admission(wrong):
    async def main():
        buffer = GroupBuffer(capacity=2)
        group = Group(id="g0", index=await buffer.admit(), rollouts=())
        buffer.finish(group)
        if wrong == "taken already":
            await buffer.take(1)
        buffer.finish(Group(id="g1", index=1, rollouts=()) if wrong == "never admitted" else group)

    with pytest.raises(AssertionError):
        buffered(main())


def test_more_slots_are_never_freed_than_groups_were_used():
    async def main():
        buffer = GroupBuffer(capacity=2)
        buffer.finish(Group(id="g0", index=await buffer.admit(), rollouts=()))
        buffer.free(1)

    with pytest.raises(AssertionError, match="freed 1 slots of 0 groups used"):
        buffered(main())


def test_a_buffer_without_a_slot_is_refused():
    with pytest.raises(ValueError, match="at least one slot; got 0"):
        GroupBuffer(0)
