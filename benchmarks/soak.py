"""A million rollouts in virtual time through the real loops, some failing, some groups flat: is memory flat, do the
books balance, does the bound hold?

    python benchmarks/soak.py --rollouts 1000000

Memory that is resident is read at a tenth of the way and at its end; the growth is printed for a rollout.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from _measure import print_machine, verdict
from _pipeline import Counter, Judged, loops_of, run

from tether.pipeline.schedule import Schedule
from tether.placement.inline import Inline

GOAL = 1.1
PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def seconds(id: str) -> float:
    return 1.0 + hash(id) % 89 / 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=300_000)
    asked = parser.parse_args()
    print_machine()
    schedule = Schedule(
        regime="fully-async", lag=2, max_staleness=7, window=8, prompts_per_step=25, group_size=8, in_flight="keep"
    )
    inline = Inline()
    steps = asked.rollouts // 250  # of ten rollouts about two fail or are filtered
    loops = loops_of(
        schedule,
        steps,
        inline.clock(),
        seconds=seconds,
        step_s=3.0,
        engines=2,
        judged=Judged(fails=97, flat=7),
    )
    seen: dict[str, tuple[int, int]] = {}

    def look(number: int) -> None:
        if number in (steps // 10, steps):
            seen["a tenth" if number < steps else "the end"] = loops.num_admitted, resident()

    began = time.process_time()
    inline.run(run(loops, look))
    spent = time.process_time() - began
    (few, before), (many, after) = seen["a tenth"], seen["the end"]
    fates = ", ".join(f"{fate} {count:,}" for fate, count in loops.ledger.balance().items())
    print(f"{loops.num_admitted:,} rollouts in {spent:.0f} CPU seconds, {spent / loops.num_admitted * 1e3:.3f} ms each")
    print(f"the books balance: {fates}")
    assert isinstance(loops.learner, Counter)
    print(f"largest staleness {loops.learner.stalest}, bound {schedule.bound}")
    print(f"resident at a tenth {before / 2**20:.0f} MiB, at the end {after / 2**20:.0f} MiB")
    print(f"  {(after - before) / (many - few):.0f} bytes a rollout; end / tenth   {verdict(after / before, GOAL)}")


if __name__ == "__main__":
    main()
