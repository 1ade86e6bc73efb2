"""Do engine and learner work at the same time? The quickstart for a few blocks under ray, and under inline beside it.

    python benchmarks/overlap.py --steps 48

Wall time of the steps against the seconds of work of engine and learner: 1 x their maximum is the best there is, 1 x
their sum is one after the other. Beside it, CPU-seconds of each process, which a busy machine changes little. The first
block is left out: nothing is there to overlap with.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from tether.config.build import train
from tether.config.recipe import Recipe, load
from tether.journal import RunView
from tether.journal.overlap import Overlap, overlap_of
from tether.records import Event


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    plain = (f"run.steps={asked.steps}", "eval.prompts=0", "checks.prompts=0", "checkpoint.every=0")
    for kind in ("inline", "ray"):
        overlap, seconds = measure(load("quickstart", (*plain, f"placement.kind={kind}", *asked.settings)))
        each = ", ".join(f"{role} {spent:.2f}" for role, spent in seconds.items())
        print(f"{kind:>6}: {overlap}")
        print(f"{'':>6}  CPU-seconds {sum(seconds.values()):.2f} ({each}); load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
