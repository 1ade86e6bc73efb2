"""What the pipeline itself costs: a rollout's way through the loops, and the buffer's operations by its size.

    python benchmarks/scheduler.py --rollouts 40000 --profile

The loops are the real ones, with 10,000 rollouts in flight; engine and trainer do nothing and take no time but virtual
time, so that all CPU seconds are the controller's: tasks, seats, ledger, buffer, gauges.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import time

from _measure import print_machine, verdict
from _pipeline import loops_of, run

from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.schedule import Schedule
from tether.placement.inline import Inline
from tether.records import Group

IN_FLIGHT = 10_000
GROUP = 8
GOAL_S = 1e-3
SIZES = (10**3, 10**4, 10**5, 10**6)


def seconds(id: str) -> float:
    """Between 1 and 2, different for each, so that completions end one by one."""
    return 1.0 + hash(id) % 997 / 997


def controller(rollouts: int) -> tuple[float, int]:
    """CPU seconds a rollout, and the most rollouts that were being sampled."""
    prompts = 25
    most = IN_FLIGHT // GROUP // prompts - 1
    schedule = Schedule(
        regime="fully-async", lag=1, max_staleness=most, prompts_per_step=prompts, group_size=GROUP, in_flight="keep"
    )
    inline = Inline()
    loops = loops_of(schedule, rollouts // (prompts * GROUP), inline.clock(), seconds=seconds, engines=2)
    began = time.process_time()
    inline.run(run(loops))
    spent = time.process_time() - began
    return spent / loops.num_admitted, sum(engine.most for engine in loops.rolling.pool.engines.values())


async def buffer_cycle(size: int) -> float:
    """CPU seconds of one group's way through a full buffer of a size: admitted, finished, taken, retired, freed."""
    batch, buffer = 10, GroupBuffer(size, 10**9, 4)
    for _ in range(size):
        buffer.finish(Group(id="g", index=await buffer.admit(), rollouts=()))
    cycles = 2000
    gc.collect()
    gc.disable()  # it walks over a million groups for every few thousand
    began = time.process_time()
    for _ in range(cycles):
        assert buffer.take(batch) is not None
        buffer.retire()
        buffer.free()
        for _ in range(batch):
            buffer.finish(Group(id="g", index=await buffer.admit(), rollouts=()))
    gc.enable()
    return (time.process_time() - began) / (cycles * batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=40_000)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    asked = parser.parse_args()
    print_machine()
    profile = cProfile.Profile()
    if asked.profile:
        profile.enable()
    each, most = controller(asked.rollouts)
    if asked.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)
    print(f"controller, {asked.rollouts} rollouts, up to {most} in flight: {each * 1e3:.3f} ms CPU a rollout")
    print(f"  against its goal of {GOAL_S * 1e3:g} ms   {verdict(each / GOAL_S, 1.0)}")
    first = 0.0
    for size in SIZES:
        spent = asyncio.run(buffer_cycle(size))
        first = first or spent
        print(f"buffer of {size:>9,} groups: {spent * 1e6:6.1f} us a group, {spent / first:.2f}x of {SIZES[0]:,}")


if __name__ == "__main__":
    main()
