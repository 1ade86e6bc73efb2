"""Evaluation of a finished model, apart from any run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tether.config.bind import bind, named, plugin
from tether.config.located import Located, locate
from tether.config.overrides import parse
from tether.config.parts import device_of, evaluation_set, judge_by, prompts_of, protocol_of, reader_of
from tether.config.recipe import read
from tether.config.rewarding import criterion_of
from tether.engines.torch import Torch
from tether.errors import ConfigError
from tether.evals.at_k import average_of_each
from tether.evals.evaluation import Evaluation, Protocol, joined
from tether.evals.options import EvalOptions
from tether.evals.pairing import paired
from tether.evals.runner import Evaluator
from tether.models.loading import load_model
from tether.placement.inline import FreeClock
from tether.registry import TASKS
from tether.rewards.composition import Composition
from tether.tasks.task import Finite, Task
from tether.weights.memory import MemoryStore

Table = Mapping[str, Any]
Told = Callable[[Evaluation, int, int, int], object]
"""Hears of every piece that is done: itself, the step its model is of, problems done, problems in all."""
COUNT, MAX_TOKENS = 1024, 32
"""Problems and tokens, where neither the command nor the run nor a recipe says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """What to evaluate, and how. What is ``None`` is as the recipe says, or the run that the model comes from."""

    source: str
    """A run directory, one of its checkpoints, or a model by embedded name, folder or hub name."""
    recipe: str | None = None
    """By name or path: of its settings those of ``[eval]`` count, and of ``[task]`` if that asks no task of its own."""
    count: int | None = None
    seed: int = 0
    samples: int | None = None
    temperature: float | None = None
    task_name: str | None = None
    max_tokens: int | None = None
    dtype: str = "float32"
    options: tuple[str, ...] = ()
    """Settings ``task.KEY=VALUE`` and ``reward.KEY=VALUE`` on top of the options of task and criterion."""
    against: str | None = None
    """Another model, asked the same with the same seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """What is asked, bound: the same for every model that takes it."""

    task_name: str
    task: Task
    criterion: Composition
    protocol: Protocol
    most: int
    """Problems asked, or all that there are."""
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamResult:
    """What ``tether eval`` found."""

    exam: Exam
    located: Located
    evaluation: Evaluation
    against: tuple[Located, Evaluation] | None = None

    def numbers(self) -> dict[str, Any]:
        """All of it as plain values."""
        p = self.exam.protocol
        about = {
            "task": p.task,
            "criterion": p.criterion,
            "n": len(self.evaluation.problems),
            "k": p.samples,
            "temperature": p.temperature,
            "top_p": p.top_p,
            "max_tokens": p.max_tokens,
            "seed": p.seed,
            "dtype": self.exam.dtype,
        }
        found = {**_numbers(self.located, self.evaluation), **about}
        if self.against is None:
            return found
        other, theirs = self.against
        difference, p_value, n = paired(*(average_of_each(e.correct, e.judged) for e in (theirs, self.evaluation)))
        return {
            **found,
            "against": _numbers(other, theirs),
            "difference": difference.value,
            "difference_low": difference.low,
            "difference_high": difference.high,
            "difference_p": p_value,
            "difference_n": n,
        }


def _numbers(located: Located, evaluation: Evaluation) -> dict[str, Any]:
    """Estimates with their ends, and what a run's journal has of an evaluation, without the ``eval/``."""
    found: dict[str, Any] = {name.removeprefix("eval/"): metric.value for name, metric in evaluation.metrics().items()}
    k, j = evaluation.protocol.samples, 1
    found |= dict(zip((f"avg@{k}", f"avg@{k}_low", f"avg@{k}_high"), evaluation.accuracy, strict=True))
    while j < k:
        if (evaluation.judged.sum(1) >= j).any():
            found |= dict(zip((f"pass@{j}", f"pass@{j}_low", f"pass@{j}_high"), evaluation.pass_at(j), strict=True))
        j *= 2
    found |= {"failed": evaluation.num_failed, "model": located.model}
    return {**found, "step": located.step, "version": evaluation.version}


def evaluate(settings: EvaluationSettings, told: Told | None = None) -> ExamResult:
    """Ask a model, and another one if there is one, everything once; ``told`` hears of what the first answered."""
    located = locate(settings.source)
    other = None if settings.against is None else locate(settings.against)
    exam = exam_of(settings, located.config)
    evaluation = take(exam, located, told)
    against = None if other is None else (other, take(exam, other, None))
    return ExamResult(exam=exam, located=located, evaluation=evaluation, against=against)


def exam_of(settings: EvaluationSettings, config: Table) -> Exam:
    """What the command asks for, on top of the recipe's settings, or of the run's."""
    name, tables = ("", config) if settings.recipe is None else read(settings.recipe)
    table = dict(tables.get("eval") or {})
    asked = named(table.pop("task", None) or tables.get("task") or "arithmetic", "task")
    reward = table.pop("reward", None)
    if settings.task_name is not None and settings.task_name != asked["name"]:
        asked, reward = {"name": settings.task_name}, None
    task, criterion = with_options(asked, reward, settings.options)
    mine: dict[str, Any] = {"prompts": settings.count, "samples": settings.samples, "reward": criterion}
    mine |= {"temperature": settings.temperature, "max_tokens": settings.max_tokens}
    options = bind(EvalOptions, {**table, **{key: value for key, value in mine.items() if value is not None}}, "eval")
    bound: Task = plugin(TASKS, task, "task")
    _check_read(bound, name, settings)
    judged_by = criterion_of(bound, options.reward)
    max_tokens = int((tables.get("engine") or {}).get("max_tokens", MAX_TOKENS))
    return Exam(
        task_name=task["name"],
        task=bound,
        criterion=judged_by,
        protocol=protocol_of(options, task["name"], judged_by, seed=settings.seed, max_tokens=max_tokens),
        most=options.prompts or COUNT,
        dtype=settings.dtype,
    )


def _check_read(task: Task, recipe: str, settings: EvaluationSettings) -> None:
    """Read a file of problems before a model is loaded."""
    if not isinstance(task, Finite):
        return
    try:
        task.size("heldout")
    except ConfigError as error:
        if recipe and not any(text.startswith("task.path") for text in settings.options):
            raise ConfigError(
                f"recipe {recipe!r} asks problems from a file of yours; say which: --set task.path=FILE ({error})"
            ) from error
        raise


def take(exam: Exam, located: Located, told: Told | None) -> Evaluation:
    """Load a model and ask it everything."""
    device, protocol = device_of("auto"), exam.protocol
    loaded = load_model(located.model, device=device)
    source = prompts_of((exam.task_name, exam.task), loaded, protocol.max_tokens, "heldout", protocol.seed)
    questions = evaluation_set(source, exam.most, protocol)
    store = MemoryStore(exam.dtype)
    options = Torch(dtype=exam.dtype, max_tokens=protocol.max_tokens)
    engine = options.open(located.model, store=store, clock=FreeClock(), device=device)
    evaluator = Evaluator(engine, store, protocol, questions, judge_by(reader_of(loaded), exam.criterion))
    size = max(1, 2 * options.max_rows // protocol.samples)

    async def ask() -> Evaluation:
        pieces = []
        async for piece in evaluator.pieces(located.version, loaded.model.state_dict(), size):
            pieces.append(piece)
            if told is not None:
                told(piece, located.step, sum(len(one.problems) for one in pieces), len(questions[0]))
        return joined(pieces)

    return asyncio.run(ask())


def with_options(
    task: dict[str, Any], reward: Any, settings: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Tables of a task and a criterion with settings ``task.KEY=VALUE`` and ``reward.KEY=VALUE`` on top."""
    tables = {"task": dict(task), "reward": None if reward is None else named(reward, "reward")}
    for text in settings:
        key, value = parse(text)
        where, dot, option = key.partition(".")
        if where not in tables or not dot:
            raise ConfigError(
                "only options of the task and of the criterion can be set here, such as task.max_operations=12 or "
                f"reward.name=number; got {text!r}"
            )
        table = tables[where] or {}
        tables[where] = {"name": value} if where == "reward" and option == "name" else {**table, option: value}
    found = tables["task"]
    assert found is not None
    return found, tables["reward"]
