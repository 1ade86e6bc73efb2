"""The self-test: a few real training steps of the quickstart in a temporary folder, judged by their journal.

Engine and trainer both compute in float32 here, so on the first batch, which nothing has made stale yet, they agree.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import safe_open

from tether.config.build import train
from tether.config.recipe import Recipe, load
from tether.errors import TetherError
from tether.journal import RunView
from tether.machine.finding import Finding, Status, reason_of
from tether.machine.surroundings import Surroundings
from tether.models.loading import resolve_source
from tether.records import Event

SECTION: Final = "self-test"
SETTINGS: Final = (
    "run.steps=6",
    "run.samples=0",
    "engine.dtype=float32",
    "trainer.dtype=float32",
    "pipeline.lag=2",
    "eval.prompts=0",
)
"""What makes the quickstart small enough; lag 2, so that weights are published while it runs."""
FLOOR: Final = 1e-4
"""Largest mean |d|, and mean |ratio - 1|, of a fresh batch in float32. The quickstart's is 3e-7; a bfloat16 engine
gives 3e-3, and weights that are one update too old 5e-4."""
LONG_S: Final = 60.0
"""Seconds from which training here takes patience; the self-test needs under 20 on two cores."""
REPORT: Final = (
    "with nothing else wrong above this is a fault of tether: report it with the output of tether doctor --json"
)


def look(here: Surroundings) -> Iterator[Finding]:
    """Train, read the journal, judge."""
    try:
        with tempfile.TemporaryDirectory(prefix="tether-doctor-", dir=here.temp()) as folder:
            recipe, began = load("quickstart", SETTINGS), time.monotonic()
            run = RunView(train(recipe, Path(folder) / "run"))
            findings = [_duration(run, time.monotonic() - began), *judge(run, recipe)]
    except TetherError as error:  # its message has the way out
        findings = [_fail("training", str(error), REPORT)]
    except Exception as error:
        findings = [_fail("training", reason_of(error), REPORT)]
    yield from findings


def judge(run: RunView, recipe: Recipe) -> Iterator[Finding]:
    """What must hold of every run, and how fast this one was."""
    fresh = [event for event in run.steps if _number(event, "staleness/max") == 0]
    yield from _agreement(fresh)
    yield _loss(run)
    yield _weights(run, Path(resolve_source(recipe.model.path)))
    yield _staleness(run, recipe)
    yield _balance(run, recipe)
    yield from _figures(run)


def _duration(run: RunView, seconds: float) -> Finding:
    status: Status = "warn" if seconds > LONG_S else "ok"
    value = f"{len(run.steps)} quickstart steps in {seconds:.1f} s, loading included"
    way_out = "see threads and load above; a GPU, or fewer prompts a step, make steps shorter" if status != "ok" else ""
    return Finding(section=SECTION, name="training", status=status, value=value, way_out=way_out)


def _agreement(fresh: list[Event]) -> Iterator[Finding]:
    """Engine against trainer, and the ratio, on data sampled with the very weights that are trained."""
    if not fresh:
        yield _fail("log-probs", "no batch was trained on fresh: the first one must have staleness 0", REPORT)
        return
    distance = max(_number(event, "mismatch/abs_mean") for event in fresh)
    largest = max(_number(event, "mismatch/max") for event in fresh)
    off = max(2 * _number(event, "mismatch/tv") for event in fresh)
    way_out = "engine and trainer compute different models: try --set run.device=cpu, and the pip lines above"
    value = f"engine and trainer differ by {distance:.1e} nats on average, {largest:.1e} at most"
    yield _check("log-probs", distance <= FLOOR, value, f"{value}; the floor is {FLOOR:g}", way_out)
    value = f"1 on fresh data, but for {off:.1e} on average"
    yield _check("ratio", off <= FLOOR, value, f"off 1 by {off:.1e} on fresh data; the floor is {FLOOR:g}", way_out)


def _loss(run: RunView) -> Finding:
    """The journal takes finite numbers only: a step with no loss had none that was finite."""
    losses = run.series("policy/loss")[1]
    norms = run.series("policy/grad_norm")[1]
    holds = len(losses) == len(run.steps) > 0 and bool(np.isfinite(losses).all()) and bool(np.isfinite(norms).all())
    value = f"finite in {len(losses)} of {len(run.steps)} steps"
    return _check(
        "loss", holds, value, value, "try --set run.device=cpu; if that helps, the GPU or its driver is at fault"
    )


def _weights(run: RunView, source: Path) -> Finding:
    if run.model is None:
        return _fail("weights", "no model was saved at the end", REPORT)
    before, after = (_tensors(folder) for folder in (source, run.model))
    changed = [name for name in after if name in before and not np.array_equal(before[name], after[name])]
    value = f"{len(changed)} of {len(after)} tensors changed by training"
    return _check("weights", bool(changed), value, value, REPORT)


def _staleness(run: RunView, recipe: Recipe) -> Finding:
    worst, bound = float(run.series("staleness/max")[1].max(initial=0.0)), recipe.pipeline.bound
    value = f"at most {worst:.0f} optimizer updates; the bound is {bound}"
    return _check("staleness", worst <= bound, value, value, REPORT)


def _balance(run: RunView, recipe: Recipe) -> Finding:
    """Every rollout of every batch has one line, and nothing else has."""
    balance = run.balance()
    ids = [line.id for line in run.ledger]
    asked = recipe.run.steps * recipe.pipeline.prompts_per_step * recipe.pipeline.group_size
    holds = run.status == "finished" and len(set(ids)) == len(ids) and balance.get("trained") == asked
    told = ", ".join(f"{count} {fate}" for fate, count in balance.items()) or "nothing"
    return _check("ledger", holds, f"closes: {told}", f"{asked} rollouts were to be trained; it has {told}", REPORT)


def _figures(run: RunView) -> Iterator[Finding]:
    """Speed after the first step, whose lap holds what is done once: memory taken, kernels chosen."""
    if len(run.steps) < 2:
        return
    starts = [line.started_s for line in run.ledger if line.started_s is not None]
    first = min(starts, default=0.0)
    tokens = sum(line.num_completion_tokens for line in run.ledger if (line.started_s or first) > first)
    generate_s = sum(_number(event, "time/generate_s") for event in run.steps[1:])
    train_s = statistics.median(_number(event, "time/train_s") for event in run.steps[1:])
    if generate_s > 0:
        value = f"{tokens / generate_s:,.0f} tokens/s in float32"
        yield Finding(section=SECTION, name="engine", status="ok", value=value)
    rows = sum(line.fate == "trained" for line in run.ledger) // len(run.steps)
    yield Finding(section=SECTION, name="trainer", status="ok", value=f"{train_s:.2f} s a step of {rows} rollouts")


def _check(name: str, holds: bool, value: str, otherwise: str, way_out: str) -> Finding:
    return Finding(section=SECTION, name=name, status="ok", value=value) if holds else _fail(name, otherwise, way_out)


def _fail(name: str, value: str, way_out: str) -> Finding:
    return Finding(section=SECTION, name=name, status="fail", value=value, way_out=way_out)


def _number(event: Event, name: str) -> float:
    """A number that the step must have; ``inf`` where it is missing, so that no check passes without it."""
    metric = event.metrics.get(name)
    return float(metric.value) if metric is not None and isinstance(metric.value, float) else float("inf")


def _tensors(folder: Path) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="np") as opened:
            tensors |= {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118 - it is no mapping
    return tensors
