"""Evaluation of a finished model, apart from any run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.config.bind import plugin
from tether.config.overrides import parse
from tether.config.parts import correct_by, device_of, evaluation_set, prompts_of, reader_of
from tether.config.rewarding import criterion_of
from tether.engines.torch import Torch
from tether.errors import ConfigError, ModelError
from tether.evals.runner import EvalOptions, Evaluator
from tether.journal.reader import RunView
from tether.journal.schema import CONFIG_FILE, EVENTS_FILE, MODEL_FOLDER
from tether.models.loading import load_model
from tether.placement.inline import FreeClock
from tether.registry import TASKS
from tether.weights.memory import MemoryStore


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What to evaluate, and how."""

    source: str
    """A run directory, or a model by embedded name, folder or hub name."""
    count: int
    seed: int
    temperature: float
    task_name: str | None = None
    """The run's own task with its options, or arithmetic, if not given."""
    max_tokens: int | None = None
    """The run's own, or 32, if not given."""
    dtype: str = "float32"
    options: tuple[str, ...] = ()
    """Settings ``task.KEY=VALUE`` on top of the task's options."""

    def __post_init__(self) -> None:
        EvalOptions(prompts=self.count, temperature=self.temperature)  # refuses what it refuses inside a run


def evaluate(settings: EvaluationSettings) -> dict[str, Any]:
    """Accuracy with its interval, as a plain dictionary."""
    model, config = locate(settings.source)
    table = config.get("task", {"name": "arithmetic"})
    if settings.task_name is not None and settings.task_name != table["name"]:
        table = {"name": settings.task_name}
    table = with_options(dict(table), settings.options)
    task = plugin(TASKS, table, "task")
    max_tokens = settings.max_tokens or int(config.get("engine", {}).get("max_tokens", 32))
    device = device_of("auto")
    loaded = load_model(model, device=device)
    source = prompts_of((table["name"], task), loaded, max_tokens, "heldout", settings.seed)
    prompts, requests = evaluation_set(
        source, settings.count, seed=settings.seed, temperature=settings.temperature, max_tokens=max_tokens
    )
    store = MemoryStore(settings.dtype)
    engine = Torch(dtype=settings.dtype, max_tokens=max_tokens).open(
        model, store=store, clock=FreeClock(), device=device
    )
    evaluator = Evaluator(engine, store, prompts, requests, correct_by(reader_of(loaded), criterion_of(task)))
    result = asyncio.run(evaluator(0, loaded.model.state_dict()))
    metrics = {name.removeprefix("eval/"): metric.value for name, metric in result.metrics().items()}
    about = {"model": model, "task": table["name"], "n": settings.count, "seed": settings.seed, "dtype": settings.dtype}
    return {**metrics, "temperature": settings.temperature, **about}


def with_options(table: dict[str, Any], settings: tuple[str, ...]) -> dict[str, Any]:
    """A task's table with settings ``task.KEY=VALUE`` on top."""
    for text in settings:
        key, value = parse(text)
        if not key.startswith("task."):
            raise ConfigError(f"only options of the task can be set here, such as task.max_operations=12; got {text!r}")
        table[key.removeprefix("task.")] = value
    return table


def locate(source: str) -> tuple[str, dict[str, Any]]:
    """The model of a run with the run's settings, or a model with none."""
    folder = Path(source)
    if not ((folder / CONFIG_FILE).is_file() and (folder / EVENTS_FILE).is_file()):
        return source, {}
    if not (folder / MODEL_FOLDER).is_dir():
        raise ModelError(
            f"run {source!r} has no {MODEL_FOLDER}/: it did not finish; give a folder of its "
            "checkpoints/ if it has some"
        )
    return str(folder / MODEL_FOLDER), dict(RunView(folder).config)
