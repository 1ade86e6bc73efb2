"""Going on with a run: which checkpoint, which settings, and what is cut off first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tether.config.data import check_same_data
from tether.config.overrides import apply
from tether.config.recipe import Recipe, from_tables, read
from tether.errors import ConfigError, ResumeError, RunDirectoryError
from tether.journal.reader import RunView
from tether.journal.schema import CONFIG_FILE, LINE_FILES, MODEL_FOLDER, ROLLED_BACK_FOLDER
from tether.journal.writer import RunWriter, check_unwritten, write_whole
from tether.pipeline.checkpoint import Checkpoint, Checkpoints
from tether.pipeline.nonfinite import DUMP_FILE

NEEDED = ("recipe", "run", "model", "task", "engine", "pipeline", "algorithm", "trainer")
"""Tables without which a run's settings are not known."""
MAY_CHANGE = (
    "run.steps",
    "run.samples",
    "run.trace",
    "selection.most_flat",
    "faults",
    "eval.every",
    "checkpoint",
    "checks",
    "algorithm",
    "trainer.lr",
    "trainer.warmup",
    "trainer.schedule",
    "trainer.betas",
    "trainer.weight_decay",
    "trainer.grad_clip",
    "trainer.token_budget",
    "trainer.gradient_checkpointing",
    "placement.hang_after_s",
    "placement.costs",
    "placement.address",
    "placement.reward_workers",
    "placement.spread",
    "placement.threads",
    "placement.object_store_bytes",
    "placement.heartbeat_s",
    "placement.max_restarts",
    "placement.deadlines",
)
"""Settings that may be others when a run goes on, each with the tables under it. Any other one would change what the
checkpoint's numbers mean: the model, the data, the slots, the engines and their numbers, which groups are taken out,
the weights that are kept for old log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting that is another one than before."""

    key: str
    before: Any
    after: Any

    @property
    def is_allowed(self) -> bool:
        """Whether a run can go on with it."""
        if self.key == "algorithm.replay":  # the rollouts under way were sampled with or without their routes
            return False
        return any(self.key == key or self.key.startswith(f"{key}.") for key in MAY_CHANGE)

    def __str__(self) -> str:
        return f"{self.key}: {json.dumps(self.before)} -> {json.dumps(self.after)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePlan:
    """How a run goes on."""

    folder: Path
    recipe: Recipe
    changes: tuple[Change, ...]
    checkpoint: Checkpoint | None
    """Where it goes on; ``None``: it has none yet and starts over."""
    is_finished: bool
    """There is nothing left to do."""
    lengths: Mapping[str, int]
    """Of the journal's files, in bytes, when this was decided."""


def plan(folder: Path, source: str | None, settings: Iterable[str], told: Callable[[str], object]) -> ResumePlan:
    """Look at a run directory and decide; changes nothing. ``told`` hears of checkpoints that are skipped.

    The settings are the run's own, or those of ``source``, with ``settings`` on top.
    """
    run = RunView(folder)
    check_unwritten(folder)
    if missing := [name for name in NEEDED if name not in run.config]:
        raise ResumeError(
            f"{folder / CONFIG_FILE} must have the run's settings; it lacks {', '.join(missing)}. If the run stopped "
            "before it began, start it again in a new folder; else copy it again from where it was made"
        )
    before = tables_of(run.config)
    name, tables = (str(run.config["recipe"]), tables_of(run.config)) if source is None else read(source)
    recipe = from_tables(apply(tables, settings), name)
    changes = tuple(compare(before, tables_of(recipe.resolved())))
    if refused := [change for change in changes if not change.is_allowed]:
        lines = "; ".join(map(str, refused))
        raise ConfigError(
            f"a run cannot go on with other settings of this kind: {lines}. What its checkpoint holds would mean "
            f"something else; start a new run for them. These may change: {', '.join(MAY_CHANGE)}"
        )
    check_same_data(recipe, run.config)
    lengths, steps = _lengths(folder), run.steps[-1].step if run.steps else 0
    is_finished = run.status == "finished" and steps == recipe.run.steps
    checkpoint = None if is_finished else Checkpoints(folder).newest(told, lengths)
    done = steps if run.status == "finished" else checkpoint.step if checkpoint is not None else 0
    if recipe.run.steps < done:
        raise ConfigError(f"run.steps must be at least the {done} steps that are done; got {recipe.run.steps}")
    return ResumePlan(
        folder=folder,
        recipe=recipe,
        changes=changes,
        checkpoint=checkpoint,
        is_finished=is_finished,
        lengths=lengths,
    )


@contextmanager
def locked(planned: ResumePlan) -> Iterator[RunWriter]:
    """The run's only writer, for as long as the block lasts; refused if the run has gone on since it was looked at."""
    with RunWriter.reopen(planned.folder) as writer:
        if writer.offsets() != planned.lengths:
            raise ResumeError(
                f"{planned.folder} has gone on since it was looked at; nothing was touched: resume it again"
            )
        yield writer


def roll_back(planned: ResumePlan, writer: RunWriter) -> RunWriter:
    """Cut the journal back to the checkpoint; what is cut off is kept in ``rolled-back/``.

    A step that was not finished, because this was killed too, is simply done again the next time.
    """
    folder = planned.folder
    try:
        kept = _new_folder(folder / ROLLED_BACK_FOLDER)
        step = 0 if planned.checkpoint is None else planned.checkpoint.step
        about = {
            "step": step,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "changes": [str(change) for change in planned.changes],
        }
        write_whole(kept / "resume.json", (json.dumps(about, indent=1) + "\n").encode())
        shutil.copyfile(folder / CONFIG_FILE, kept / CONFIG_FILE)
        offsets = dict.fromkeys(LINE_FILES, 0) if planned.checkpoint is None else planned.checkpoint.offsets
        writer.cut_back(offsets, kept)
        for later in Checkpoints(folder).later_than(step):
            later.rename(kept / later.name)
        for name in (MODEL_FOLDER, DUMP_FILE):
            if (folder / name).exists():
                (folder / name).rename(kept / name)
    except OSError as error:
        if isinstance(error, RunDirectoryError):
            raise
        raise ResumeError(
            f"cannot cut back {folder}: {error.strerror or error}; make room, or check its rights"
        ) from error
    return writer


def tables_of(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The tables of a recipe out of a resolved one: without what is derived, and without what is not set."""
    return {name: _without_none(table) for name, table in resolved.items() if name not in ("recipe", "derived")}


def compare(before: Mapping[str, Any], after: Mapping[str, Any], prefix: str = "") -> Iterator[Change]:
    """Every setting that differs, by its dotted key.

    >>> [str(change) for change in compare({"run": {"steps": 4, "seed": 0}}, {"run": {"steps": 8, "seed": 0}})]
    ['run.steps: 4 -> 8']
    """
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from compare(old, new, f"{prefix}{key}.")
        elif old != new:
            yield Change(key=f"{prefix}{key}", before=old, after=new)


def _lengths(folder: Path) -> dict[str, int]:
    return {name: (folder / name).stat().st_size if (folder / name).exists() else 0 for name in LINE_FILES}


def _new_folder(home: Path) -> Path:
    home.mkdir(exist_ok=True)
    numbers = [int(path.name) for path in home.iterdir() if path.name.isdecimal()]
    made = home / f"{max(numbers, default=0) + 1:03d}"
    made.mkdir()
    return made


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return list(value) if isinstance(value, tuple) else value
