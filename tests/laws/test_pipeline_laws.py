"""The laws of docs/staleness.md and of the ledger, held by the real loops under random schedules, faults and stops."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.pipeline.making import Manners
from tests.pipeline.running import Run, World
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.schedule import Schedule
from tether.placement.inline import Costs

from .unchecked import unchecked_types  # noqa: F401 - holds for this module
from .worlds import check, close, overtaken, random_schedule, random_world

NUM_WORLDS = 400
NUM_RESUMED = 120
NUM_FORGOTTEN = 40
NUM_WRONG = 25
MANY = 13


def hold(seeds: range, *, has_trouble: bool) -> None:
    """Every law of every world, and that the bound is reached and every trouble met by some."""
    reached, met = Counter[str](), Counter[str]()
    for seed in seeds:
        schedule, world = random_world(seed, has_trouble=has_trouble)
        try:
            run = Run(schedule, world).go()
            check(run)
            assert overtaken(run) <= schedule.window
        except BaseException as error:
            error.add_note(f"world {seed} has {schedule} and {world}")
            raise
        if max(max(seen) for seen in run.learner.seen) == schedule.bound:
            reached[schedule.regime + " with a window" * (schedule.window > 0)] += 1
        met.update(run.ledger.balance())
        met["overtaken"] += overtaken(run)
        met["lost engines"] += sum(engine.num_lost for engine in run.engines.values())
        met["mixed"] += any(len(seen) > 1 for seen in run.learner.seen)
    assert set(reached) >= {"sync", "batch-async", "fully-async", "fully-async with a window"}
    troubles = {"filtered:all-right", "filtered:too-few-survivors", "filtered:no-advantage", "evicted:staleness"}
    troubles |= {"evicted:queue", "failed:reward", "failed:reward-deadline", "failed:deadline", "lost engines"}
    assert {"trained", "overtaken", "mixed", *(troubles if has_trouble else ())} <= set(+met), met


def bare(call: str) -> None:
    """Call a function of this file in an interpreter without pytest's checks of types: five times faster."""
    code = f"from tests.laws.test_pipeline_laws import hold, go_on_exactly; {call}"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_all_laws_hold_under_random_schedules_and_faults_and_a_run_goes_on_as_if_it_had_never_stopped():
    bare(
        f"hold(range({NUM_WORLDS // 2}), has_trouble=False); hold(range({NUM_WORLDS}), has_trouble=True); "
        f"go_on_exactly(range({NUM_RESUMED}))"
    )


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, MANY))
def test_all_laws_hold_under_very_many_random_schedules_and_faults(part):
    bare(f"hold(range({part * NUM_WORLDS}, {(part + 1) * NUM_WORLDS}), has_trouble=True)")


def test_a_checkpoint_is_made_when_nobody_else_can_go_on_and_batches_chosen_before_it_are_at_hand_again():
    bare("go_on_exactly([3263, 3670, 7142, 10732])")


@pytest.mark.long
@pytest.mark.parametrize("part", range(1, MANY))
def test_very_many_runs_go_on_as_if_they_had_never_stopped(part):
    bare(f"go_on_exactly(range({part * NUM_RESUMED}, {(part + 1) * NUM_RESUMED}))")


def resumed(seed: int, *, is_exact: bool) -> tuple[Run, int, Run]:
    """A run, a random batch of it, and the run that goes on from there."""
    schedule, world = random_world(seed, is_exact=is_exact)
    whole = Run(schedule, world).go()
    number = random.Random(seed).randint(1, world.steps)
    return whole, number, Run(schedule, world).go_on_from(whole, number)


def go_on_exactly(seeds: Iterable[int]) -> None:
    for seed in seeds:
        whole, number, after = resumed(seed, is_exact=True)
        saved = whole.saved[number]
        assert after.learner.batches == whole.learner.batches[number:], seed
        assert after.learner.seen == whole.learner.seen[number * whole.schedule.updates_per_batch :], seed
        close(whole)
        close(after)
        assert after.lines == whole.lines[saved.num_lines :], seed
        assert after.ledger.balance() == whole.ledger.balance(), seed


def test_a_run_whose_engines_forgot_what_was_under_way_loses_nothing_and_keeps_the_bound():
    for seed in range(NUM_FORGOTTEN):
        whole, number, after = resumed(seed, is_exact=False)
        used = {index for batch in whole.learner.batches[:number] for index in batch}
        assert not used & {index for batch in after.learner.batches for index in batch}, seed
        assert max([0, *(max(seen) for seen in after.learner.seen)]) <= whole.schedule.bound, seed
        assert number + len(after.learner.batches) == after.world.steps, seed
        close(after)


@pytest.mark.parametrize("each", [1, 2, 3])
@pytest.mark.parametrize("in_flight", ["finish", "keep", "recompute", "restart"])
def test_fully_async_at_the_least_bound_is_sync(each, in_flight):
    for seed in range(4):
        numbers = random.Random(seed)
        plain = {"lag": each, "updates_per_batch": each, "prompts_per_step": numbers.randint(1, 3), "group_size": 2}
        _, world = random_world(seed, has_trouble=False)
        sync = Run(Schedule(regime="sync", **plain), world).go()
        free = Schedule(regime="fully-async", max_staleness=each - 1, in_flight=in_flight, **plain)
        fully = Run(free, world).go()
        assert fully.learner.used == sync.learner.used
        assert fully.learner.seen == sync.learner.seen
        assert fully.lines == sync.lines


class FreesAtUse(GroupBuffer):
    def retire(self) -> None:
        super().retire()
        self.free()


class NoWindow(GroupBuffer):
    def _overtaken(self, chosen: tuple[int, ...]) -> int:
        return 0


async def free_first(run: Run) -> None:
    """Give slots back, and let whoever waits for one begin, before the weights are there."""
    run.buffer.free()
    await run.loops.rolling.clock.until(run.loops.rolling.clock.now() + 1e-3)


def broken_by(change: dict[str, object]) -> Counter[str]:
    """In how many worlds of each regime a wrong buffer breaks the bound."""
    broken = Counter[str]()
    for seed in range(NUM_WRONG):
        schedule = random_schedule(random.Random(f"wrong {seed}"))
        costs = Costs(generate_token_s=1.0, train_step_s=0.5, publish_s=0.5)
        steps = 3 * schedule.lag // schedule.updates_per_batch + 3
        world = World(steps=steps, seed=seed, bare=True, costs=costs, manners=Manners(load_s=0.1), **change)
        run = Run(schedule, world).go()
        broken[schedule.regime] += max(max(seen) for seen in run.learner.seen) > schedule.bound
    return broken


def test_slots_freed_at_use_instead_of_publication_break_the_bound():
    assert set(+broken_by({"buffer": FreesAtUse})) == {"sync", "batch-async", "fully-async"}


def test_slots_freed_before_publication_break_the_bound():
    assert set(+broken_by({"before_publication": free_first})) == {"sync", "batch-async", "fully-async"}


def test_taking_groups_out_of_order_without_a_window_breaks_the_bound():
    assert set(+broken_by({"buffer": NoWindow})) == {"fully-async"}


def test_nothing_else_breaks_the_bound():
    assert not +broken_by({})
