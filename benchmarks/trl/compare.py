"""A step of tether against a step of TRL's GRPOTrainer, and against the model's own time.

Each runs in its own process; they take turns, a step each, so that all meet the same machine. The first steps are not
counted. Same folder, prompts, groups, number of generated tokens, number format, threads, AdamW, PPO's clip without KL
penalty, one update a batch. A step is generation, reward, forward, backward, update and, in tether, the publication
with its self-check, whose cost does not grow with the batch: ``--set checks.prompts=0`` leaves the check out. TRL makes
one forward and one backward, as it does by default when batch and update are of one size, and keeps the activations of
its layers, which it does not by default (``--trl-default``). With SmolLM2 the three processes need about 16 GB.

    python benchmarks/trl/compare.py --trl-python .venv-trl/bin/python [--model FOLDER] [--threads 1] [--steps 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import IO, Any

from turns import Setting

from models import quiet, texts_of, tiny_qwen3, unending

HERE = Path(__file__).parent
WARM = 1
"""Steps of each that are not counted: in the first, the optimizer makes its state."""


class Competitor:
    """A process that makes a step whenever it is told to."""

    def __init__(self, python: str, script: str, arguments: list[str], log: IO[str], threads: int) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONWARNINGS": "ignore",
        }
        self._log, self._name = log, script
        self._process = subprocess.Popen(
            [python, str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        )
        self._read()

    def step(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.flush()
            raise SystemExit(f"{self._name} stopped:\n{Path(self._log.name).read_text()[-2000:]}")
        message: dict[str, Any] = json.loads(line)
        return message


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trl-python", required=True, help="interpreter of the environment of constraints.txt")
    parser.add_argument("--model", type=Path, help="a folder; left out, a random Qwen3 of 7 M parameters")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5, help="counted steps of each")
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--prompts-per-step", type=int, default=8)
    parser.add_argument("--group-size", type=int, default=4)
    parser.add_argument("--trl-default", action="store_true", help="let TRL recompute layers, as it does unless told")
    parser.add_argument("--no-floor", action="store_true", help="leave the model's own time out, and its memory")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of tether's recipe")
    return parser.parse_args()


def prepare(asked: argparse.Namespace, folder: Path) -> Path:
    """The model, the prompts and the setting's file."""
    model = folder / "model"
    if asked.model is None:
        tiny_qwen3(model)
    else:
        unending(asked.model, model)
    steps = asked.steps + WARM + 2  # nobody reaches the end, where a run saves its model
    prompts = folder / "prompts.json"
    prompts.write_text(json.dumps(texts_of(model, steps * asked.prompts_per_step, asked.prompt_tokens)))
    setting = Setting(
        model=str(model),
        prompts=str(prompts),
        steps=steps,
        group_size=asked.group_size,
        prompts_per_step=asked.prompts_per_step,
        max_tokens=asked.max_tokens,
        prompt_tokens=asked.prompt_tokens,
        checkpointing=asked.trl_default,
    )
    setting.write(folder / "setting.json")
    return folder / "setting.json"


def compete(asked: argparse.Namespace, setting: Path, log: IO[str]) -> dict[str, list[dict[str, Any]]]:
    """Steps of all, taken in turns; one that generated fewer tokens than the others counts for nobody."""
    own = [str(setting)]
    whole = asked.prompts_per_step * asked.group_size * asked.max_tokens
    competitors = {
        "tether": Competitor(sys.executable, "run_tether.py", [*own, *asked.set], log, asked.threads),
        "TRL": Competitor(asked.trl_python, "run_trl.py", own, log, asked.threads),
    }
    if not asked.no_floor:
        competitors["model"] = Competitor(sys.executable, "run_floor.py", own, log, asked.threads)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in competitors}
    try:
        for number in range(WARM + asked.steps):
            turn = {name: competitor.step() for name, competitor in competitors.items()}
            if number >= WARM and all(step["tokens"] == whole for step in turn.values()):
                for name, step in turn.items():
                    taken[name].append(step)
    finally:
        for competitor in competitors.values():
            competitor.close()
    if not taken["tether"]:
        raise SystemExit("no step was whole: some completion always ended early; give another model")
    return taken


def show(taken: Mapping[str, list[dict[str, Any]]], asked: argparse.Namespace) -> None:
    count = len(taken["tether"])
    name = asked.model.name if asked.model else "random Qwen3, 7.1 M"
    print(
        f"{date.today()}  {name}, float32: {asked.prompts_per_step} prompts of {asked.prompt_tokens} tokens x "
        f"{asked.group_size} completions of {asked.max_tokens}; {asked.threads} thread(s); medians of {count} steps"
    )
    settings = [*asked.set, *(["TRL recomputes layers"] if asked.trl_default else [])]
    print(f"all at their defaults otherwise{', but ' + ', '.join(settings) if settings else ''}")
    for who, steps in taken.items():
        cpu, wall = (statistics.median(step[key] for step in steps) for key in ("cpu", "wall"))
        keys = sorted({key for step in steps for key in step["parts"] if key != "virtual_s"})
        parts = ", ".join(f"{k[:-2]} {statistics.median(s['parts'].get(k, 0.0) for s in steps):.2f}" for k in keys)
        print(f"{who:7s} {cpu:7.2f} CPU-s {wall:7.2f} s wall   {parts}")
    for other, what in (("TRL", "TRL / tether"), ("model", "tether / model's own time")):
        if other not in taken:
            continue
        pairs = list(zip(taken[other], taken["tether"], strict=True))
        flip = other == "model"
        for key in ("cpu", "wall"):
            ratio = statistics.median(a[key] / b[key] for a, b in pairs)
            print(f"{what:26s} {1 / ratio if flip else ratio:5.2f}   ({key})")


def main() -> None:
    quiet()
    asked = arguments()
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w+") as log:
        show(compete(asked, prepare(asked, Path(folder)), log), asked)


if __name__ == "__main__":
    main()
