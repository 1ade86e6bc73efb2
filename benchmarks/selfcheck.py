"""How far the self-checks of a sound run are from an alarm, and what they cost.

A run of the quickstart's recipe is made for each number format of the engine, and its journal is read: the largest
distance against what is allowed, the least progress from the version before to the new one (0.5 is needed), how many
looks were close ones, how many could not decide, and the CPU seconds of publications as a share of all work.

    python benchmarks/selfcheck.py --steps 400 --set trainer.lr=1e-3
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from pathlib import Path

from _measure import print_machine

from tether.config.build import train
from tether.config.recipe import load
from tether.journal import RunView


def report(dtype: str, steps: int, settings: list[str]) -> None:
    recipe = load("quickstart", [f"run.steps={steps}", "eval.prompts=0", f"engine.dtype={dtype}", *settings])
    began = time.process_time()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        run = RunView(train(recipe, Path(folder) / "run"))
        spent_s = time.process_time() - began
        looks = {name: run.series(f"probe/{name}", "check")[1] for name in ("distance", "allowed", "progress")}
        num_close, num_undecided = (run.series(f"probe/{n}", "check")[1].sum() for n in ("close_looks", "is_undecided"))
        seconds = run.totals("time/")
    print(
        f"engine {dtype}, trainer {recipe.trainer.dtype}, lr {recipe.trainer.lr:g}, {steps} steps, {spent_s:.0f} CPU s"
    )
    print(
        f"  looks              {len(looks['distance'])}, of which close {num_close:.0f}, undecided {num_undecided:.0f}"
    )
    print(f"  distance / allowed {(looks['distance'] / looks['allowed']).max():.2f} at most (an alarm is above 1)")
    if len(looks["progress"]):
        print(f"  progress           {looks['progress'].min():.2f} at least (an alarm is below 0.5)")
    print(f"  publications       {seconds['time/publish_s'] / sum(seconds.values()):.1%} of the seconds of work")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    print_machine()
    for dtype in ("bfloat16", "float32"):
        report(dtype, given.steps, given.settings)


if __name__ == "__main__":
    main()
