"""Do engine and learner work at the same time? With sleep in place of both; then the quickstart, ray and inline.

    python benchmarks/overlap.py --steps 48
    python benchmarks/overlap.py --only-simulated

Simulated: the real loops in real time, an engine that sleeps for each rollout, a trainer that sleeps for each step, so
that neither takes a core from the other. Both sides take equally long, or one twice the other; the wall time of
all steps but those of the first two blocks is held against the longer side's seconds.

Wall time of the steps against the seconds of work of engine and learner: 1 x their maximum is the best there is, 1 x
their sum is one after the other. Beside it, CPU-seconds of each process, which a busy machine changes little. The first
block is left out: nothing is there to overlap with.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from pathlib import Path

from _measure import verdict
from _pipeline import loops_of, run

from tether.config.build import train
from tether.config.recipe import Recipe, load
from tether.journal import RunView
from tether.journal.overlap import Overlap, overlap_of
from tether.pipeline.schedule import Regime, Schedule
from tether.placement.real_time import RealClock
from tether.records import Event

GOAL = 1.05


def cpu_s(pid: int) -> float:
    """CPU-seconds of a process so far."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def measure(recipe: Recipe) -> tuple[Overlap, dict[str, float]]:
    """Overlap of all blocks but the first, and the CPU-seconds that they took by role."""
    first, last = recipe.pipeline.lag, recipe.run.steps
    seen: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "run"

        def look(event: Event) -> None:
            if event.event == "step" and event.step in (first, last):
                lines = (folder / "processes.jsonl").read_text().splitlines()
                seen[event.step] = {facts["role"]: cpu_s(facts["pid"]) for facts in map(json.loads, lines)}

        train(recipe, folder, observers=(look,))
        steps = [event for event in RunView(folder).steps if event.step > first]
    return overlap_of(steps), {role: seen[last][role] - before for role, before in seen[first].items()}


def simulated(generate_s: float, train_s: float, regime: Regime, steps: int = 20) -> float:
    """Wall seconds of the steps after the first two blocks, whose data no update precedes, against the longer side's.

    All groups of a batch are sampled at once, in ``generate_s``; as many batches are in generation as the engine has
    rows for: one. So one batch's data takes ``generate_s``, one step ``train_s``.
    """
    lag, prompts = 4, 2
    schedule = Schedule(
        regime=regime, lag=lag if regime == "batch-async" else 1, max_staleness=2 * lag - 1, prompts_per_step=prompts
    )
    moments: list[float] = []

    async def work() -> None:
        clock = RealClock()
        rows = prompts * schedule.group_size
        loops = loops_of(schedule, steps, clock, seconds=lambda id: generate_s, step_s=train_s, rows=rows)
        await run(loops, lambda number: moments.append(time.perf_counter()))

    asyncio.run(work())
    return (moments[-1] - moments[2 * lag - 1]) / (max(generate_s, train_s) * (steps - 2 * lag))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--only-simulated", action="store_true")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    for regime in ("batch-async", "fully-async"):
        for generate_s, train_s in ((0.4, 0.4), (0.4, 0.2), (0.2, 0.4)):
            reached = simulated(generate_s, train_s, regime)
            sides = f"generate {generate_s:g} s, train {train_s:g} s a step"
            print(f"{regime}, {sides}: wall / longer side   {verdict(reached, GOAL)}")
    if asked.only_simulated:
        return
    plain = (f"run.steps={asked.steps}", "eval.prompts=0", "checks.prompts=0", "checkpoint.every=0")
    for kind in ("inline", "ray"):
        overlap, seconds = measure(load("quickstart", (*plain, f"placement.kind={kind}", *asked.settings)))
        each = ", ".join(f"{role} {spent:.2f}" for role, spent in seconds.items())
        print(f"{kind:>6}: {overlap}")
        print(f"{'':>6}  CPU-seconds {sum(seconds.values()):.2f} ({each}); load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
