import asyncio

import pytest

from tether.errors import RewardError, TetherError
from tether.pipeline.faults import Faults
from tether.pipeline.schedule import Schedule
from tether.placement.inline import Costs

from .making import Manners
from .running import Run, World

COSTS = Costs(generate_token_s=1.0, train_step_s=1.0, publish_s=0.1)


def stopped_by(run: Run) -> str:
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    error: BaseException = stopped.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, TetherError)
    return str(error)


def failing(*members: int):
    """A reward that raises for some members of every group."""

    async def score(prompt, text, id):
        if int(id.partition("/")[2]) in members:
            raise RewardError(f"no answer to {id}", rollout_id=id)
        return float(id.endswith("0"))

    return score


def test_a_rollout_that_never_ends_fails_at_its_deadline_and_its_group_goes_on():
    world = World(steps=4, seed=3, costs=COSTS, manners=Manners(hangs=0.1), faults=Faults(rollout_s=50.0))
    run = Run(Schedule(lag=1, prompts_per_step=2, group_size=4), world).go()
    late = [line for line in run.lines if line.fate == "failed:deadline"]
    assert late
    assert all(line.finished_s is None for line in late)
    assert {"trained", "failed:deadline"} == set(run.ledger.balance())
    assert "faults.rollout_s" in run.told[0]


def test_a_reward_that_never_comes_fails_at_its_deadline():
    async def score(prompt, text, id):
        if id == "g2/1":
            await asyncio.sleep(1e9)
        return 1.0

    world = World(steps=4, costs=COSTS, score=score, faults=Faults(reward_s=30.0))
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=3), world).go()
    assert [line.id for line in run.lines if line.fate == "failed:reward-deadline"] == ["g2/1"]
    assert run.ledger.balance()["trained"] == 11
    assert "faults.reward_s = 30" in run.told[0]


def test_a_group_with_two_survivors_is_trained_on_and_one_with_fewer_is_replaced():
    async def score(prompt, text, id):
        if id in ("g1/0", "g2/0", "g2/1"):
            raise RewardError("no answer", rollout_id=id)
        return float(id.endswith("0"))

    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=3), World(steps=4, costs=COSTS, score=score)).go()
    assert run.learner.batches == [(0,), (1,), (3,), (4,)]
    assert run.ledger.balance() == {"failed:reward": 3, "filtered:too-few-survivors": 1, "trained": 11}


def test_in_groups_of_one_a_rollout_that_fails_takes_its_group_with_it():
    async def score(prompt, text, id):
        if id == "g1/0":
            raise RewardError("no answer", rollout_id=id)
        return 1.0

    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=1), World(steps=3, costs=COSTS, score=score)).go()
    assert run.learner.batches == [(0,), (2,), (3,)]
    assert run.ledger.balance() == {"failed:reward": 1, "trained": 3}


def test_a_run_of_which_every_rollout_fails_stops_and_names_the_task():
    world = World(steps=3, costs=COSTS, score=failing(0, 1, 2), faults=Faults(most_failed=7))
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=3), world)
    assert "7 rollouts of task 'test' failed in a row" in stopped_by(run)
    assert run.ledger.balance() == {"failed:reward": 7}


def test_a_run_of_which_no_group_has_survivors_enough_stops_though_rollouts_come_to_an_end():
    world = World(steps=3, costs=COSTS, score=failing(0), faults=Faults(most_failed=5))
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=2), world)
    said = stopped_by(run)
    assert "5 groups of task 'test' in a row had fewer than 2 rollouts that did not fail" in said
    assert run.ledger.balance()["filtered:too-few-survivors"] == 5


@pytest.mark.parametrize("in_flight", ["finish", "keep", "recompute", "restart"])
def test_an_engine_that_is_lost_again_and_again_loses_no_rollout(in_flight):
    schedule = Schedule(
        regime="fully-async", lag=1, max_staleness=3, prompts_per_step=2, group_size=2, in_flight=in_flight
    )
    world = World(steps=6, seed=1, costs=COSTS, engines=2, manners=Manners(loses=0.3, load_s=0.5))
    run = Run(schedule, world).go()
    assert sum(engine.num_lost for engine in run.engines.values()) > 3
    assert run.ledger.balance() == {"trained": 24}
    assert max(line.num_restarts for line in run.lines) >= 1
    assert max(max(seen) for seen in run.learner.seen) <= schedule.bound


def test_an_engine_comes_back_though_the_rollout_that_noticed_its_death_is_past_its_deadline():
    """Its revival takes longer than the deadline of whoever began it."""
    world = World(
        steps=6, seed=2, costs=COSTS, engines=1, manners=Manners(loses=0.2, load_s=20.0), faults=Faults(rollout_s=12.0)
    )
    run = Run(Schedule(regime="fully-async", lag=1, max_staleness=3, prompts_per_step=2, group_size=2), world).go()
    assert sum(engine.num_lost for engine in run.engines.values()) >= 1
    assert len(run.learner.batches) == 6


def test_an_engine_that_cannot_be_revived_stops_the_run():
    world = World(steps=6, seed=1, costs=COSTS, engines=1, manners=Manners(loses=0.5))
    run = Run(Schedule(lag=1, prompts_per_step=2, group_size=2), world)

    async def broken(name: str) -> None:
        raise TetherError(f"{name} cannot be started")

    run.loops.rolling.pool.revive = broken
    assert stopped_by(run) == "engine-0 cannot be started"
