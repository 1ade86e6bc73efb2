import asyncio
import os
import signal
import threading
import time
from contextlib import contextmanager

import pytest

from tether.errors import ConfigError, StalledError
from tether.pipeline.interrupts import Stopped, StopRequest
from tether.placement.inline import Costs, FreeClock, Inline
from tether.placement.watchdog import Watchdog

PATIENCE = 0.2


def inline(**costs: float) -> Inline:
    return Inline(costs=Costs(**costs))


@contextmanager
def at_most(seconds: float):
    """Real seconds: what is virtual takes no time, and what hangs is stopped soon."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def test_time_jumps_to_the_next_timer_instead_of_passing():
    async def main():
        clock = placed.clock()
        await asyncio.sleep(86_400.0 * 365)
        return clock.now()

    placed = inline()
    with at_most(5.0):
        assert placed.run(main()) == 86_400.0 * 365


@pytest.mark.parametrize("seconds", [1e12, 1e300])
def test_a_wait_of_any_length_is_one_jump(seconds):
    async def main():
        await asyncio.gather(asyncio.sleep(seconds), asyncio.sleep(1.0))
        return asyncio.get_running_loop().time()

    with at_most(5.0):
        assert inline().run(main()) == seconds


def test_a_long_wait_does_not_jump_over_a_shorter_one():
    async def nap(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(asyncio.get_running_loop().time())

    async def main():
        cancelled = asyncio.create_task(nap(2e5))
        tasks = [asyncio.create_task(nap(seconds)) for seconds in (1e9, 1e6, 1e5, 1.0)]
        await asyncio.sleep(0.5)
        cancelled.cancel()
        await asyncio.gather(*tasks)

    seen: list[float] = []
    inline().run(main())
    assert seen == [1.0, 1e5, 1e6, 1e9]


def test_work_costs_what_the_recipe_says_and_nothing_else_does():
    async def main():
        clock = placed.clock()
        time.sleep(0.02)
        before = clock.now()
        await clock.spend("generate_token", 8.0)
        await clock.spend("train_step")
        await clock.spend("publish")
        await clock.spend("reward", 4.0)
        return before, clock.now()

    placed = inline(generate_token_s=0.5, train_step_s=2.0, publish_s=0.25, reward_s=0.125)
    assert placed.run(main()) == (0.0, 6.75)


def test_events_happen_in_the_order_of_virtual_time_whatever_the_work_takes():
    async def worker(name: str, naps: list[float], real: float) -> None:
        for nap in naps:
            await asyncio.sleep(nap)
            time.sleep(real)
            seen.append((asyncio.get_running_loop().time(), name))

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(worker("slow", [1.0, 1.0, 1.0], 0.01))
            tasks.create_task(worker("fast", [0.75, 0.75, 0.75], 0.0))

    seen: list[tuple[float, str]] = []
    inline().run(main())
    assert seen == [(0.75, "fast"), (1.0, "slow"), (1.5, "fast"), (2.0, "slow"), (2.25, "fast"), (3.0, "slow")]


def test_a_cost_of_nothing_still_lets_others_run():
    async def count(name: str) -> None:
        for _ in range(3):
            await clock.spend("reward")
            seen.append(name)

    async def main():
        await asyncio.gather(count("a"), count("b"))

    placed, seen = inline(reward_s=0.0), []
    clock = placed.clock()
    placed.run(main())
    assert seen == ["a", "b"] * 3


def test_small_steps_far_into_a_run_still_go_on():
    async def main():
        await asyncio.sleep(1e9)
        for _ in range(100):
            await asyncio.sleep(1e-9)
        return asyncio.get_running_loop().time()

    with at_most(5.0):
        assert inline().run(main()) == pytest.approx(1e9)


@pytest.mark.parametrize("value", [-0.1, 1e7, float("inf"), float("nan")])
@pytest.mark.parametrize("name", ["generate_token_s", "reward_s", "train_step_s", "publish_s"])
def test_a_cost_is_neither_negative_nor_beyond_all_bounds(name, value):
    with pytest.raises(ConfigError, match=rf"placement.costs.{name} must lie in 0 .. 1e\+06 seconds; got"):
        Costs(**{name: value})


def test_work_without_a_cost_in_the_recipe_is_an_error():
    async def main():
        await placed.clock().spend("thinking")

    placed = inline()
    with pytest.raises(KeyError, match="thinking"):
        placed.run(main())


def test_the_free_clock_costs_nothing_and_needs_no_virtual_loop():
    async def main():
        clock = FreeClock()
        await clock.spend("generate_token", 1e9)
        return clock.now()

    assert asyncio.run(main()) == 0.0


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


def test_a_stall_names_every_task_and_the_line_at_which_it_waits():
    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_ever(), name="feed")
            tasks.create_task(asyncio.Queue().get(), name="roll")
            tasks.create_task(waits_inside(), name="train")

    async def waits_inside():
        await wait_for_ever()

    with pytest.raises(StalledError) as stalled, at_most(5.0):
        inline().run(main())
    said = str(stalled.value)
    assert said.startswith("every task waits for another, and no timer is set: ")
    assert f"feed, train at wait_for_ever:{wait_for_ever.__code__.co_firstlineno + 1}" in said
    assert "main:" in said
    assert "roll at unknown" in said  # nothing of ours on its stack


def test_a_stalled_run_may_still_tidy_up_and_knows_why_it_ended():
    async def main():
        try:
            await wait_for_ever()
        except asyncio.CancelledError as stopped:
            await asyncio.sleep(1.0)
            reasons.append(str(stopped))
            raise

    reasons: list[str] = []
    with pytest.raises(StalledError) as stalled:
        inline().run(main())
    assert reasons == [str(stalled.value)]
    assert "wait_for_ever" in reasons[0]


def test_a_run_that_stalls_again_while_it_tidies_up_is_ended():
    async def main():
        try:
            await wait_for_ever()
        finally:
            await wait_for_ever()

    with pytest.raises(StalledError, match="wait_for_ever"), at_most(5.0):
        inline().run(main())


def test_a_run_that_ends_itself_is_no_stall():
    async def main():
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(1.0)

    with pytest.raises(asyncio.CancelledError):
        inline().run(main())


def busy(seconds: float = 20.0) -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        pass


def sleeping() -> None:
    time.sleep(20.0)


def waiting_for_a_thread() -> None:
    threading.Event().wait(20.0)


def reading() -> None:
    ours, theirs = os.pipe()
    try:
        os.read(ours, 1)
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("hang", [busy, sleeping, waiting_for_a_thread, reading])
def test_the_watchdog_stops_work_that_hangs_and_says_where_it_stands(hang):
    async def train():
        hang()

    async def main():
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait_for_ever(), name="feed")
            tasks.create_task(train(), name="train")

    with pytest.raises(ExceptionGroup) as stopped, at_most(10.0):
        Inline(hang_after_s=PATIENCE).run(main())
    assert stopped.group_contains(StalledError, match=r"more than placement.hang_after_s = 0.2 seconds; raise it if")
    said = str(stopped.value.exceptions[0])
    assert f"in {hang.__name__}\n" in said
    assert "in train\n" in said


def test_work_that_swallows_the_stop_is_stopped_again():
    async def main():
        for attempt in range(2):
            try:
                sleeping()
            except StalledError:
                if attempt:
                    raise

    with pytest.raises(StalledError), at_most(10.0):
        Inline(hang_after_s=PATIENCE).run(main())


def test_the_watchdog_leaves_work_alone_that_comes_by():
    async def main():
        for _ in range(6):
            time.sleep(0.2)
            await asyncio.sleep(1e6)  # virtual hours are no hang
        return "done"

    assert Inline(hang_after_s=1.0).run(main()) == "done"


def test_signal_and_thread_of_the_watchdog_are_gone_after_the_run():
    before = signal.getsignal(Watchdog.SIGNAL)

    async def main():
        assert signal.getsignal(Watchdog.SIGNAL) != before
        assert "tether-watchdog" in {thread.name for thread in threading.enumerate()}

    inline().run(main())
    assert signal.getsignal(Watchdog.SIGNAL) == before
    assert "tether-watchdog" not in {thread.name for thread in threading.enumerate()}


def test_a_run_in_another_thread_is_not_watched_and_works():
    async def main():
        await asyncio.sleep(5.0)
        return asyncio.get_running_loop().time()

    times: list[float] = []
    thread = threading.Thread(target=lambda: times.append(Inline(hang_after_s=PATIENCE).run(main())))
    thread.start()
    thread.join()
    assert times == [5.0]


def test_an_interrupt_inside_the_work_passes_through():
    async def main():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        inline().run(main())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda s: s.name)
def test_a_first_signal_only_asks_and_a_second_ends_the_run_where_it_stands_and_lets_it_tidy_up(number, capsys):
    async def work():
        os.kill(os.getpid(), number)
        seen.append("asked")
        assert stop.asked_by == number
        await asyncio.sleep(1.0)
        seen.append("goes on")
        os.kill(os.getpid(), number)
        seen.append("never")

    async def main():
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(work())
        finally:
            seen.append("tidy")

    seen: list[str] = []
    stop = StopRequest()
    with pytest.raises(Stopped) as stopped:
        inline().run(main(), stop)
    assert seen == ["asked", "goes on", "tidy"]
    assert stopped.value.exit_code == 128 + number
    said = capsys.readouterr().err
    assert said.count("the run stops after the step under way and saves it") == 1
    assert "never retrieved" not in said


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")])
def test_a_watchdog_without_patience_or_with_endless_patience_is_refused(value):
    with pytest.raises(ConfigError, match=r"placement\.hang_after_s must lie in 0\.1 \.\. 1e\+09 seconds; got"):
        Inline(hang_after_s=value)


def test_time_begins_where_it_is_told_to():
    async def main():
        clock = placed.clock()
        due = clock.due("train_step")
        await clock.until(due)
        return due, asyncio.get_running_loop().time()

    placed = inline(train_step_s=0.1)
    start_s = 1e9 + 0.3
    assert placed.run(main(), start_s=start_s) == (start_s + 0.1, start_s + 0.1)


def test_it_is_quiet_when_everybody_else_waits_for_time_or_for_another():
    async def busy():
        for _ in range(50):
            await asyncio.sleep(0)
        seen.append("busy is done")
        await asyncio.sleep(1.0)
        seen.append("a second later")

    async def main():
        task = asyncio.create_task(busy())
        await placed.clock().quiet()
        seen.append("quiet")
        await task

    placed = inline()
    seen: list[str] = []
    placed.run(main())
    assert seen == ["busy is done", "quiet", "a second later"]


def test_what_a_task_does_for_free_costs_nothing_and_others_pay_as_ever():
    async def paying():
        await clock.spend("reward")
        seen.append(("paid", clock.now()))

    async def main():
        task = asyncio.create_task(paying())
        with clock.free():
            await clock.spend("train_step", 100.0)
            seen.append(("free", clock.now()))
        await task
        await clock.spend("train_step")
        seen.append(("paid again", clock.now()))

    placed = inline(train_step_s=1.0, reward_s=2.0)
    clock, seen = placed.clock(), []
    placed.run(main())
    assert seen == [("free", 0.0), ("paid", 2.0), ("paid again", 3.0)]
