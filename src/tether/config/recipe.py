"""A recipe: TOML tables, read, overridden, bound to the classes they configure, and checked against each other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from tether.config.abilities import check_engine, engine_doubts_of
from tether.config.bind import bind, describe, describe_plugin, named, plugin
from tether.config.overrides import apply, expand
from tether.config.review import check_algorithm, check_old, doubts_of
from tether.config.rewarding import bind_rewards, describe_rewards
from tether.config.toml import read_toml
from tether.core.algorithm import Algorithm
from tether.errors import ConfigError
from tether.evals.options import EvalOptions
from tether.models.lora import Lora
from tether.pipeline.agreement import CheckOptions
from tether.pipeline.checkpoint import CheckpointOptions
from tether.pipeline.curriculum import CurriculumOptions
from tether.pipeline.faults import Faults
from tether.pipeline.old_policy import OldOptions
from tether.pipeline.schedule import Schedule
from tether.pipeline.selection import Selection
from tether.pipeline.trainer import TrainerOptions
from tether.placement.inline import Inline
from tether.placement.ray import Ray
from tether.ports import EngineOptions
from tether.registry import ENGINES, RULES, TASKS
from tether.rewards.composition import Composition
from tether.tasks.task import Task

DEVICE = re.compile(r"auto|cpu|cuda(:[0-9]{1,3})?")
"""Devices that a run can use; the arithmetic needs float64, which others lack."""
MOST_STEPS = 10**9
MOST_RANK = 4096
PLACEMENTS: Mapping[str, type[Inline] | type[Ray]] = {"inline": Inline, "ray": Ray}
TABLES = (
    *("run", "model", "task", "reward", "curriculum", "engine", "pipeline", "selection", "faults"),
    *("algorithm", "trainer", "eval"),
    *("old", "checkpoint", "checks", "placement"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The ``[run]`` table."""

    steps: int = 100
    """Batches to train on."""
    seed: int = 0
    """Of prompts and samples."""
    device: str = "auto"
    """``cpu``, ``cuda``, ``cuda:1``; ``auto`` takes a GPU if there is one."""
    samples: int = 4
    """Rollouts stored each time, at about twenty points of the run; 0 stores none."""
    trace: bool = True
    """Whether it is written down what each part did when, for ``tether trace``."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"run.steps must be at least 1; got {self.steps}")
        if self.steps > MOST_STEPS:
            raise ConfigError(f"run.steps must be at most {MOST_STEPS}; got {self.steps}")
        if self.samples < 0 or self.seed < 0:
            raise ConfigError(f"run.samples and run.seed must be >= 0; got {self.samples} and {self.seed}")
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(f"run.device must be auto, cpu, cuda or cuda:N; got {self.device!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """The ``[model]`` table."""

    path: str = "tiny-moe"
    """An embedded name, a folder, or a hub name."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In which the weights are read and saved; training uses ``trainer.dtype``, the engine ``engine.dtype``."""
    reference: str = ""
    """The frozen model of the KL penalty; empty means the model as it is before training."""
    lora_rank: int = 0
    """Rank of a low-rank adapter (LoRA, arXiv:2106.09685) that is trained and published in the place of all weights;
    0: none."""
    lora_alpha: float = 16.0
    """The adapter's part of a layer is multiplied by this over the rank."""
    lora_targets: tuple[str, ...] = ()
    """Last parts of the names of the linear layers that get an adapter, such as ``q_proj``; empty: all but the head
    and routers."""

    def __post_init__(self) -> None:
        if not 0 <= self.lora_rank <= MOST_RANK:
            raise ConfigError(f"model.lora_rank must lie in 0 .. {MOST_RANK}; got {self.lora_rank}")
        if self.lora is None and self.lora_targets:
            raise ConfigError(
                f"model.lora_targets is {list(self.lora_targets)}, but model.lora_rank = 0 means no adapter; set a rank"
            )

    @property
    def lora(self) -> Lora | None:
        """The adapter, if there is one."""
        if self.lora_rank == 0:
            return None
        return Lora(rank=self.lora_rank, alpha=self.lora_alpha, targets=self.lora_targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything a run is made from, as objects."""

    name: str
    run: RunOptions
    model: ModelOptions
    task_name: str
    task: Task
    reward: Composition | None
    """What is trained on; ``None``: the reward that the task names."""
    curriculum: CurriculumOptions
    engine: EngineOptions
    """A plug-in of the engines' room."""
    pipeline: Schedule
    selection: Selection
    faults: Faults
    algorithm: Algorithm
    trainer: TrainerOptions
    old: OldOptions
    eval: EvalOptions
    checkpoint: CheckpointOptions
    checks: CheckOptions
    placement: Inline | Ray
    preset: str = ""
    """The preset the algorithm started from, if any."""

    @property
    def algorithm_label(self) -> str:
        """The preset's name, with a note if a key of it was changed; the rule's where there is no preset."""
        if not self.preset:
            return RULES.name_of(self.algorithm.rule)
        try:
            as_named = _algorithm({"preset": self.preset}, self.engine.max_tokens)
        except ConfigError:  # a preset that is whole only with a setting of one's own, such as estr's threshold
            return self.preset
        return self.preset if as_named == self.algorithm else f"{self.preset}, changed"

    @property
    def doubts(self) -> list[str]:
        """What this recipe does that is known to be doubtful, a sentence each."""
        return [*doubts_of(self), *engine_doubts_of(self)]

    def resolved(self) -> dict[str, Any]:
        """Every setting in force, defaults included, as plain tables."""
        algorithm = {"preset": self.preset or None, **describe(self.algorithm)}
        return {
            "recipe": self.name,
            "run": describe(self.run),
            "model": describe(self.model),
            "task": describe_plugin(TASKS, self.task),
            "reward": describe_rewards(self.reward),
            "curriculum": describe(self.curriculum),
            "engine": describe_plugin(ENGINES, self.engine, "kind"),
            "pipeline": describe(self.pipeline),
            "selection": describe(self.selection),
            "faults": describe(self.faults),
            "algorithm": algorithm,
            "trainer": describe(self.trainer),
            "old": describe(self.old),
            "eval": describe(self.eval),
            "checkpoint": describe(self.checkpoint),
            "checks": describe(self.checks),
            "placement": {"kind": _kind_of(self.placement), **describe(self.placement)},
            "derived": {
                "algorithm": self.algorithm_label,
                "staleness_bound": self.pipeline.bound,
                "group_slots": self.pipeline.slots,
                "doubts": self.doubts,
            },
        }


def load(source: str = "quickstart", settings: Iterable[str] = ()) -> Recipe:
    """Read a recipe by name or path, apply ``--set`` settings, bind and check it. Raises ``ConfigError``."""
    name, tables = read(source)
    return from_tables(apply(tables, settings), name)


def read(source: str) -> tuple[str, dict[str, Any]]:
    """Name and raw tables of a recipe: one of ours by name, or a TOML file."""
    known = names()
    path = Path(source)
    try:
        if source in known:
            content = (resources.files("tether.recipes") / f"{source}.toml").read_bytes()
        elif path.is_file():
            content = path.read_bytes()
        else:
            there = f"there {'are' if len(known) > 1 else 'is'} {', '.join(known)}"
            raise ConfigError(f"no recipe {source!r}; {there}, or give the path of a TOML file")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(f"recipe {source!r} cannot be read: {reason}; give a file that you may read") from error
    return path.stem, read_toml(content, f"recipe {source!r}")


def names() -> tuple[str, ...]:
    """The recipes that come with the package."""
    folder = resources.files("tether.recipes")
    return tuple(sorted(p.name.removesuffix(".toml") for p in folder.iterdir() if p.name.endswith(".toml")))


def from_tables(tables: Mapping[str, Any], name: str = "recipe") -> Recipe:
    """Bind raw tables; unknown keys are errors that list the known ones."""
    if unknown := [key for key in tables if key not in TABLES]:
        raise ConfigError(f"unknown table [{unknown[0]}]; a recipe has {', '.join(TABLES)}")
    get = {table: tables.get(table, {}) for table in TABLES}
    task = named({"name": "arithmetic"} if get["task"] == {} else get["task"], "task")
    engine = named({"kind": "torch", **_table(get["engine"], "engine")}, "engine", "kind")
    bound_engine = plugin(ENGINES, engine, "engine", "kind")
    raw = _table({"preset": "sat-gspo"} if get["algorithm"] == {} else get["algorithm"], "algorithm")
    algorithm = _algorithm(raw, bound_engine.max_tokens)
    recipe = Recipe(
        name=name,
        run=bind(RunOptions, get["run"], "run"),
        model=bind(ModelOptions, get["model"], "model"),
        task_name=task["name"],
        task=plugin(TASKS, task, "task"),
        reward=bind_rewards(get["reward"]),
        curriculum=bind(CurriculumOptions, get["curriculum"], "curriculum"),
        engine=bound_engine,
        pipeline=bind(Schedule, get["pipeline"], "pipeline"),
        selection=bind(Selection, get["selection"], "selection"),
        faults=bind(Faults, get["faults"], "faults"),
        algorithm=algorithm,
        trainer=bind(TrainerOptions, get["trainer"], "trainer"),
        old=bind(OldOptions, get["old"], "old"),
        eval=bind(EvalOptions, get["eval"], "eval"),
        checkpoint=bind(CheckpointOptions, get["checkpoint"], "checkpoint"),
        checks=bind(CheckOptions, get["checks"], "checks"),
        placement=_placement(_table(get["placement"], "placement")),
        preset=raw.get("preset") or "",
    )
    _check(recipe)
    check_engine(recipe)
    return recipe


def _algorithm(table: dict[str, Any], max_tokens: int) -> Algorithm:
    table = expand(table)
    if "aggregation" in table:
        aggregation = named(table["aggregation"], "algorithm.aggregation")
        if aggregation["name"] == "seq-mean-token-sum-norm":
            aggregation["horizon"] = aggregation.get("horizon") or max_tokens
        table["aggregation"] = aggregation
    return bind(Algorithm, table, "algorithm", beside=("preset",))


def _placement(table: dict[str, Any]) -> Inline | Ray:
    kind = table.get("kind", "inline")
    if not isinstance(kind, str) or kind not in PLACEMENTS:
        raise ConfigError(f"no placement {kind!r}; there are {', '.join(PLACEMENTS)}")
    rest = {key: value for key, value in table.items() if key != "kind"}
    return bind(PLACEMENTS[kind], rest, "placement", beside=("kind",))


def _kind_of(placement: Inline | Ray) -> str:
    return next(kind for kind, cls in PLACEMENTS.items() if type(placement) is cls)


def _table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table; got {value!r}")
    return value


def _check(recipe: Recipe) -> None:
    """What single tables cannot see."""
    if recipe.pipeline.group_size == 1 and recipe.algorithm.advantage.single == "drop":
        raise ConfigError(
            "pipeline.group_size = 1 leaves every group without a baseline, so nothing would be trained; use a group "
            "size of at least 2, or set algorithm.advantage.single to 'raw' or 'zero'"
        )
    if recipe.pipeline.group_size == 1 and recipe.selection.flat_groups == "filter":
        raise ConfigError(
            "selection.flat_groups = 'filter' would filter every group of pipeline.group_size = 1, whose rewards are "
            "all equal; train on them, or use a group size of at least 2"
        )
    _check_dropping(recipe.selection, recipe.pipeline)
    _check_deadline(recipe)
    if recipe.engine.temperature <= 0:
        raise ConfigError(
            f"engine.temperature must be > 0 for training; got {recipe.engine.temperature}: greedy samples have no "
            "log-probability to learn from"
        )
    if recipe.model.reference and recipe.algorithm.kl is None:
        raise ConfigError(
            f"model.reference is {recipe.model.reference!r}, but there is no [algorithm.kl] to use it; "
            "add one or leave the reference out"
        )
    check_old(recipe)
    coarse = "bfloat16" in (recipe.trainer.dtype, recipe.model.dtype)
    if recipe.model.lora is not None and recipe.engine.dtype == "float32" and coarse:
        raise ConfigError(
            "with model.lora_rank the engine keeps the base that it reads, and must hold the trainer's; an engine in "
            "float32 would not hold one that was rounded to bfloat16: set model.dtype and trainer.dtype to float32, or "
            "engine.dtype to bfloat16"
        )
    check_algorithm(recipe)


def _check_dropping(selection: Selection, pipeline: Schedule) -> None:
    """Refuse limits that drop what was just generated: another would be generated in its place, and dropped too."""
    stale, queue = selection.drop_staleness, selection.drop_queue
    if stale is not None and pipeline.regime != "sync" and stale < pipeline.lag:
        raise ConfigError(
            f"selection.drop_staleness must be at least pipeline.lag = {pipeline.lag}, the age of the newest weights "
            f"when they are replaced; got {stale}"
        )
    if queue is not None and queue < pipeline.prompts_per_step:
        raise ConfigError(
            f"selection.drop_queue must be at least pipeline.prompts_per_step = {pipeline.prompts_per_step}, or no "
            f"batch would ever be full; got {queue}"
        )


def _check_deadline(recipe: Recipe) -> None:
    """Refuse a deadline that a rollout of the longest kind misses by the costs of the recipe."""
    if not isinstance(recipe.placement, Inline):
        return
    costs, faults = recipe.placement.costs, recipe.faults
    longest_s = costs.generate_token_s * recipe.engine.max_tokens
    if longest_s >= faults.rollout_s:
        raise ConfigError(
            f"faults.rollout_s must be above what a longest rollout takes, engine.max_tokens x "
            f"placement.costs.generate_token_s = {longest_s:g} virtual seconds; got {faults.rollout_s:g}"
        )
    if costs.reward_s >= faults.reward_s:
        raise ConfigError(
            f"faults.reward_s must be above what a reward takes, placement.costs.reward_s = {costs.reward_s:g} virtual "
            f"seconds; got {faults.reward_s:g}"
        )
