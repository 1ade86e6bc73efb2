"""The quickstart, made small enough to run many times."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tether.config.build import build, placed
from tether.config.recipe import load
from tether.journal import RunView
from tether.journal.writer import RunWriter
from tether.pipeline.controller import Controller

SMALL = (
    "run.steps=6",
    "run.device=cpu",
    "run.samples=3",
    "pipeline.lag=2",
    "pipeline.prompts_per_step=2",
    "pipeline.group_size=4",
    "algorithm.preset=sat-grpo",
    "eval.prompts=16",
    "eval.every=4",
    "trainer.warmup=2",
)


def controller_of(out: Path, settings: Sequence[str] = ()) -> Controller:
    recipe = load(settings=(*SMALL, *settings))
    with placed(recipe) as parts:
        return build(recipe, parts, partial(RunWriter, out))


def go(controller: Controller, settings: Sequence[str] = ()) -> None:
    recipe = load(settings=(*SMALL, *settings))
    with controller.writer:
        recipe.placement.run(controller.run(), controller.stop)


def train(out: Path, *settings: str) -> RunView:
    """A whole run in this process."""
    go(controller_of(out, settings), settings)
    return RunView(out)


def journal(folder: Path) -> dict[str, Any]:
    """What two runs with one seed have in common: every byte but real time."""
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        for name in [n for n in event["metrics"] if n.startswith(("time/", "throughput/"))]:
            del event["metrics"][name]
    names = ("config.json", "ledger.jsonl", "rollouts.jsonl", "evals.jsonl")
    files = {name: (folder / name).read_bytes() for name in names}
    return {**files, "events": [json.dumps(event) for event in events]}


def assert_books_balance(run: RunView, *, groups: int, size: int, admitted_only: bool = False) -> None:
    """Every id that was admitted has exactly one line; without a stop, that is every id of the run."""
    ids = [line.id for line in run.ledger]
    assert len(ids) == len(set(ids))
    every = {f"g{g}/{m}" for g in range(groups) for m in range(size)}
    assert set(ids) <= every if admitted_only else set(ids) == every
    whole = {id.partition("/")[0] for id in ids}
    assert len(ids) == len(whole) * size
