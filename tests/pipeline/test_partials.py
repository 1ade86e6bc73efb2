"""Rollouts that were under way when a run stopped, on engines that can only tell what they have sampled so far."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tether.evals.history import History
from tether.pipeline.alarms import Alarms
from tether.pipeline.saving import partials_of
from tether.pipeline.schedule import Schedule
from tether.pipeline.snapshot import Snapshot, going_on
from tether.placement.inline import Costs
from tether.records import Completion

from .making import Manners
from .running import Run, World

STEPS, SIZE = 10, 2


class Telling(Run):
    """Keeps, after every batch, what its engines had sampled."""

    async def between(self, number: int) -> None:
        self.partials = {**getattr(self, "partials", {}), number: await partials_of(self.engines)}
        await super().between(number)

    def go_on_with(self, before: Telling, number: int, how: str) -> Run:
        saved = before.saved[number]
        snapshot = Snapshot(
            now_s=saved.now_s,
            loops=saved.state,
            partials=before.partials[number],
            open_lines=saved.open_lines,
            evaluations=History(),
            alarms=Alarms(),
            skipped=0,
        )
        before.saved[number] = replace(saved, state=going_on(snapshot, how))
        try:
            return self.go_on_from(before, number)
        finally:
            before.saved[number] = saved


def run_of(seed: int, in_flight: str, window: int) -> tuple[Schedule, World]:
    schedule = Schedule(
        regime="fully-async",
        lag=1 + seed % 2,
        max_staleness=5,
        in_flight=in_flight,
        window=window,
        prompts_per_step=1 + seed % 3,
        group_size=SIZE,
    )
    costs = Costs(generate_token_s=0.4, reward_s=0.3 * (seed % 2), train_step_s=0.5, publish_s=0.1)
    world = World(
        steps=STEPS, seed=seed, costs=costs, most_tokens=8, manners=Manners(tells=False), saves=True, bare=True
    )
    return schedule, world


@pytest.mark.parametrize("how", ["keep", "restart"])
@pytest.mark.parametrize(("in_flight", "window"), [("keep", 0), ("recompute", 2), ("restart", 0), ("finish", 2)])
def test_what_was_sampled_in_part_goes_on_within_the_bound_and_nothing_is_lost_or_used_twice(how, in_flight, window):
    num_kept = num_left = 0
    for seed in range(3):
        schedule, world = run_of(seed, in_flight, window)
        whole = Telling(schedule, world)
        whole.go()
        for number in range(1, STEPS):
            run = Telling(schedule, world)
            run.go_on_with(whole, number, how)
            assert max(max(seen) for seen in run.learner.seen) <= schedule.bound
            ids = [line.id for line in whole.lines[: whole.saved[number].num_lines] + run.lines]
            assert len(ids) == len(set(ids))
            assert run.ledger.balance() == whole.ledger.balance()
            told = under_way(whole, number)
            for line in run.lines:
                if (made := told.get(line.id)) is not None and in_flight != "restart":
                    is_kept = line.version_first == made.version.min() and line.num_restarts == 0
                    assert is_kept or how == "restart", line
                    num_kept, num_left = num_kept + is_kept, num_left + (line.num_restarts == 1)
    if in_flight != "restart":
        assert num_kept > 20 if how == "keep" else num_left > 20


def under_way(run: Telling, number: int) -> dict[str, Completion]:
    """What had been sampled, in part, of rollouts that were not sampled to their end."""
    members = [member for group in run.saved[number].state.open for member in group.members]
    waiting = {member.request.id for member in members if member.completion is None and not member.is_over}
    return {id: made for id, made in run.partials[number].items() if id in waiting and len(made)}


def test_a_rollout_that_was_not_judged_yet_keeps_its_completion():
    schedule, world = run_of(1, "keep", 0)
    whole = Telling(schedule, world)
    whole.go()
    found = 0
    for number in range(1, STEPS):
        members = [member for group in whole.saved[number].state.open for member in group.members]
        unjudged = {m.request.id: m.completion for m in members if m.completion is not None and not m.is_over}
        run = Telling(schedule, world)
        run.go_on_with(whole, number, "restart")
        lengths = {line.id: line.num_completion_tokens for line in run.lines}
        sampled = {line.id: line.sampled_s for line in run.lines}
        for id, completion in unjudged.items():
            found += 1
            assert lengths[id] == len(completion)
            assert sampled[id] <= whole.saved[number].now_s
    assert found > 3
