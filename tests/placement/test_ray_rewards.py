"""Rewards in processes of their own: a few at a time, in order; hangs and deaths cost the rollout that causes them."""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

pytest.importorskip("ray")

from tether.errors import ProcessLostError, RewardError
from tether.placement.deadlines import Deadlines
from tether.placement.parts import Notices
from tether.placement.ray_rewards import AT_ONCE, RewardPart, RewardPool
from tether.placement.restarts import Restarts
from tether.records import Answer, Prompt

from .parts_on_ray import is_alive, process
from .small_engine import moody, moody_together

PROMPT = Prompt(id="p", text="?", token_ids=(1,), reference="!")


def start(name: str, make=moody):
    return process(name, partial(RewardPart, make))


@contextmanager
def opened(num: int = 1, most: int = 3, make=moody) -> Iterator[tuple[RewardPool, list]]:
    told: list = []
    notices = Notices()
    notices.listen(told.append, told.append)
    names = [f"reward-{n}" for n in range(num)]
    pool = RewardPool(partial(start, make=make), names, Deadlines(), Restarts(most, notices), notices)
    pool.started()
    try:
        yield pool, told
    finally:
        pool.end()


@pytest.fixture(scope="module")
def two(ray_here):
    with opened(2) as (pool, _):
        yield pool


def ask(pool: RewardPool, *responses: str, within_s: float = 60.0):
    async def main():
        async def one(n, response):
            async with asyncio.timeout(within_s if response.startswith("hang") else 60.0):
                return (await pool.score(PROMPT, Answer(response, id=f"g0/{n}"))).reward

        return await asyncio.gather(*(one(n, response) for n, response in enumerate(responses)), return_exceptions=True)

    return asyncio.run(main())


def test_rewards_are_computed_elsewhere_and_by_all_workers(two):
    pids = set(ask(two, *["pid"] * 40))
    assert len(pids) == 2
    assert os.getpid() not in pids


def test_an_error_of_the_reward_comes_back_as_such_with_its_rollout(two):
    fine, error = ask(two, "fine", "raise")
    assert fine == 1.0
    assert type(error) is RewardError
    assert error.rollout_id == "g0/1"
    assert "raised ValueError: no such answer; the response was 'raise'" in str(error)


def test_a_worker_has_a_few_in_hand_and_the_others_wait_here(two):
    async def main():
        asked = [asyncio.create_task(two.score(PROMPT, Answer("nap 0.02", id=f"g{n}/0"))) for n in range(60)]
        most = 0
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.005)
            most = max([most, *(len(worker.in_hand) for worker in two._workers.values())])
        return most

    assert asyncio.run(main()) == AT_ONCE
    assert two.num_waiting == 0


def test_a_slow_reward_does_not_keep_what_is_done_waiting(two):
    async def main():
        done = []

        async def one(n, nap):
            await two.score(PROMPT, Answer(f"nap {nap}", id=f"g{n}/0"))
            done.append(time.perf_counter() - began)

        began = time.perf_counter()
        await asyncio.gather(*(one(n, nap) for n, nap in enumerate([0.01, 0.01, 1.0, 1.0])))
        return done

    first, second, *_ = asyncio.run(main())
    assert max(first, second) < 0.7


def test_a_reward_that_hangs_costs_its_own_rollout_and_its_worker(ray_here):
    with opened() as (pool, told):
        pid = pool._workers["reward-0"].process.facts["pid"]
        fine, hung, *others = ask(pool, "fine", "hang", "pid", "pid", "fine", within_s=1.0)
        assert isinstance(hung, TimeoutError)
        assert fine == others[-1] == 1.0
        assert others[0] == others[1] != pid
        assert not is_alive(pid)
        assert pool._restarts._count == 0
    assert any("was ended: nobody waits any more" in text for text in told if isinstance(text, str))


def test_one_that_gives_up_while_it_waits_ends_nobody(ray_here):
    async def main():
        napping = asyncio.create_task(pool.score(PROMPT, Answer("nap 1.0", id="g0/0")))
        waiting = [asyncio.create_task(pool.score(PROMPT, Answer("fine", id=f"g0/{n}"))) for n in range(1, 9)]
        await asyncio.sleep(0.3)
        for task in waiting:
            task.cancel()
        return (await napping).reward, (await pool.score(PROMPT, Answer("pid", id="g1/0"))).reward

    with opened() as (pool, _):
        assert asyncio.run(main()) == (1.0, pool._workers["reward-0"].process.facts["pid"])
        assert pool.num_waiting == 0


def test_what_a_dead_worker_had_in_hand_is_asked_again_once(ray_here, tmp_path):
    with opened() as (pool, told):
        answers = ask(pool, f"die-once {tmp_path / 'mark'}", "fine", "fine")
        assert answers == [1.0, 1.0, 1.0]
        assert pool._restarts._count == 1
        [warning] = [text for text in told if isinstance(text, str)]
        assert "it is started anew (1 of 3)" in warning


def test_the_rollout_over_which_two_workers_die_has_failed_and_the_others_have_not(ray_here):
    with opened(2) as (pool, _):
        first, died, last = ask(pool, "fine", "die", "fine")
        assert (first, last) == (1.0, 1.0)
        assert type(died) is RewardError
        assert "2 processes died over rollout g0/1 of prompt p" in str(died)
        assert pool._restarts._count == 2


def test_workers_that_are_killed_more_often_than_allowed_stop_the_run(ray_here):
    with opened(most=0) as (pool, _):
        os.kill(pool._workers["reward-0"].process.facts["pid"], signal.SIGKILL)
        [error] = ask(pool, "fine")
        assert type(error) is ProcessLostError


def test_answers_in_hand_are_judged_together_where_a_reward_would_rather(ray_here):
    with opened(make=moody_together) as (pool, _):
        counts = ask(pool, *["count"] * (2 * AT_ONCE))
        assert counts[:AT_ONCE] == [float(AT_ONCE)] * AT_ONCE
        fine, raised = ask(pool, "fine", "raise")
        assert type(fine) is type(raised) is RewardError
        assert [error.rollout_id for error in (fine, raised)] == ["g0/0", "g0/1"]
        assert ask(pool, "fine") == [1.0]


def test_of_a_batch_over_which_a_worker_dies_each_is_asked_by_itself_and_the_one_that_kills_fails(ray_here):
    with opened(make=moody_together) as (pool, _):
        first, died, count, last = ask(pool, "fine", "die", "count", "fine")
        assert (first, count, last) == (1.0, 1.0, 1.0)
        assert type(died) is RewardError
        assert "2 processes died over rollout g0/1 of prompt p" in str(died)
        assert pool._restarts._count <= 3


def test_the_first_of_a_batch_that_gives_up_ends_the_worker_and_the_others_are_asked_by_themselves(ray_here):
    with opened(make=moody_together) as (pool, told):
        hung, *others = ask(pool, "hang", "fine", "count", within_s=1.0)
        assert isinstance(hung, TimeoutError)
        assert others == [1.0, 1.0]
        assert pool._restarts._count == 0
    assert any("was ended: nobody waits any more" in text for text in told if isinstance(text, str))
