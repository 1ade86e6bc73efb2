"""What lies between the parts stays within its bounds where the trainer is the slow one, and so do calls of actors."""

from collections import Counter

import pytest

pytest.importorskip("ray")

from tether.pipeline.schedule import Schedule
from tether.placement.ray_rewards import AT_ONCE

from .loops_on_ray import Run

SCHEDULE = Schedule(regime="fully-async", lag=1, max_staleness=3, prompts_per_step=4, group_size=8)


def test_a_slow_trainer_leaves_every_queue_within_its_bound_and_calls_are_fewer_than_rollouts(ray_here):
    steps, most = 6, Counter()

    def look():
        lines = [engine._line for engine in run.engines.values()]
        workers = run.rewards._workers.values()
        seen = {
            "asked of an engine": max(len(line._open) for line in lines),
            "waiting for an engine": run.pool.num_waiting,
            "unsent": max(len(line._outbox) for line in lines),
            "with a reward worker": max(len(worker.in_hand) for worker in workers),
            "with rewards": run.rewards.num_waiting + sum(len(worker.in_hand) for worker in workers),
            "groups": run.buffer.num_waiting + len(run.rolling.open),
        }
        most.update({what: max(0, count - most[what]) for what, count in seen.items()})

    with Run(SCHEDULE, steps, rows=24, block_s=0.01, step_s=0.3, mood="nap 0.005") as run:
        run.go(look)
    rollouts = SCHEDULE.slots * SCHEDULE.group_size
    assert most["asked of an engine"] == run.rows
    assert most["unsent"] <= run.rows
    assert most["with a reward worker"] == AT_ONCE
    assert most["waiting for an engine"] <= rollouts
    assert most["with rewards"] <= rollouts
    assert 0 < most["groups"] <= SCHEDULE.slots
    assert Counter(line.fate for line in run.lines)["trained"] == steps * 32
    assert run.calls["submit"] + run.calls["collect"] < 2 * len(run.lines)
