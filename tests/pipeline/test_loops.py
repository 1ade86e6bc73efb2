from collections import Counter

import pytest

from tether.errors import NonFiniteError, TetherError
from tether.pipeline.books import check_balance
from tether.pipeline.schedule import Schedule
from tether.records import Answer, Prompt

from .running import Run, World

LAGS = (1, 2, 3, 8)


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
    assert run.ledger.balance() == {"trained": len(ids)}
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
    assert run.ledger.balance() == {"filtered:no-advantage": 12}


def test_a_reward_that_raises_fails_its_rollout_and_its_group_goes_on_with_the_others():
    asked: list[str] = []

    def reward(prompt: Prompt, answer: Answer) -> float:
        asked.append(prompt.id)
        if prompt.id == "p/3" and asked.count("p/3") == 2:
            raise KeyError("no such answer")
        return 1.0

    run = Run(Schedule(lag=2, prompts_per_step=2, group_size=4), 6, 1, reward=reward).go()
    (failed,) = [line.id for line in run.lines if line.fate == "failed:reward"]
    assert failed.startswith("g3/")
    assert Counter(id.partition("/")[0] for id in run.learner.used)["g3"] == 3
    assert run.ledger.balance() == {"failed:reward": 1, "trained": 47}
    assert len(run.told) == 1
    assert "no such answer" in run.told[0]


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
    for engine in run.engines.values():
        generate = engine.generate

        async def broken(request, generate=generate):
            completion = await generate(request)
            completion.logp[0] = float("nan")
            return completion

        engine.generate = broken
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    assert stopped.group_contains(NonFiniteError, match=r"logp of the engine is nan at token 0.*dumped 4 rows")


@pytest.mark.parametrize("lie", ["fingerprint", "version"])
@pytest.mark.parametrize("liar", ["engine-0", "engine-1"])
def test_an_engine_that_does_not_hold_what_was_sent_stops_the_run(lie, liar):
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=2), World(steps=3, engines=2))
    engine = run.engines[liar]
    load = engine.load

    async def lying(publication, in_flight):
        received = await load(publication, in_flight)
        if lie == "version":
            engine._version -= 1
        return "f00d" if lie == "fingerprint" else received

    engine.load = lying
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    said = f"self-check 'acknowledgement' failed at version 0: {liar} says"
    assert stopped.group_contains(TetherError, match=said)


@pytest.mark.parametrize("seed", range(6))
def test_an_engine_is_asked_for_no_more_rows_than_it_has_and_groups_go_on_in_order(seed):
    world = World(steps=4, seed=seed, rows=5, engines=2)
    run = Run(Schedule(lag=2, prompts_per_step=3, group_size=4), world).go()
    assert [engine.most for engine in run.engines.values()] == [5, 5]
    assert [index for batch in run.learner.batches for index in batch] == list(range(12))


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_goes_on_skips_no_rollout_uses_none_twice_and_keeps_the_bound(seed):
    schedule = Schedule(lag=1 + seed % 4, prompts_per_step=1 + seed % 3, group_size=2)
    world = World(steps=3 * schedule.lag + 1, seed=seed, saves=True)
    whole = Run(schedule, world).go()
    for number in range(1, world.steps):
        after = Run(schedule, world).go_on_from(whole, number)
        saved = whole.saved[number]
        assert after.learner.batches == whole.learner.batches[number:]
        assert after.learner.seen == whole.learner.seen[number:]
        assert after.lines == whole.lines[saved.num_lines :]
        assert after.ledger.balance() == whole.ledger.balance()


def test_a_prompt_that_cannot_be_made_ends_the_run_with_books_that_close():
    run = Run(Schedule(lag=1, prompts_per_step=1, group_size=2), 6)
    source = run.loops.prompts

    def broken(index: int) -> Prompt:
        if index == 3:
            raise ValueError("no prompt 3")
        return source(index)

    run.loops.prompts = broken
    with pytest.raises(BaseExceptionGroup) as stopped:
        run.go()
    assert stopped.group_contains(ValueError, match="no prompt 3")
    run.loops.ledger.close_rest()
    check_balance(run.loops.ledger, run.loops.num_admitted)
