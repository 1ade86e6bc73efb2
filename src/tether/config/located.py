"""Where a model lies: a run's last weights, one of its checkpoints, or a model by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tether.errors import ModelError
from tether.journal.reader import RunView
from tether.journal.schema import MODEL_FOLDER, is_run
from tether.pipeline.checkpoint import CHECKPOINTS_FOLDER, OURS, Checkpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """A model with what is known of it."""

    model: str
    """What it can be loaded by."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the run that it comes from; empty if it comes from none."""
    step: int = 0
    """Batches that it was trained on in that run."""
    version: int = 0
    """Optimizer updates."""


def locate(source: str) -> Located:
    """A run's final model, ``RUN@STEP`` or the folder of a checkpoint, each with the run's settings; or a model.

    Raises ``ModelError`` if the run has no such model.
    """
    folder = Path(source)
    if is_run(folder):
        run = RunView(folder)
        if run.model is None:
            kept = _kept(folder, "there are no checkpoints yet")
            raise ModelError(f"run {source!r} has no {MODEL_FOLDER}/: it did not finish; {kept}")
        return Located(model=str(run.model), config=run.config, **_when(run, None))
    before, at, step = source.rpartition("@")
    if at and step.isdecimal() and is_run(Path(before)):
        checkpoint = Path(before) / CHECKPOINTS_FOLDER / f"step-{int(step):06d}"
        if not checkpoint.is_dir():
            raise ModelError(f"run {before!r} has no checkpoint of step {step}; {_kept(Path(before), 'it has none')}")
        return _checkpoint(checkpoint)
    if at and is_run(Path(before)):
        raise ModelError(f"a checkpoint is named RUN@STEP, such as {before}@100; the step {step!r} is no whole number")
    if OURS.fullmatch(folder.name) and is_run(folder.parent.parent):
        return _checkpoint(folder)
    return Located(model=source)


def _checkpoint(folder: Path) -> Located:
    run = RunView(folder.parent.parent)
    return Located(model=str(folder), config=run.config, **_when(run, int(folder.name.removeprefix("step-"))))


def _when(run: RunView, step: int | None) -> dict[str, int]:
    """Step and version of the last event, or of the last one of a step."""
    events = [event for event in run.events if step is None or event.step <= step]
    return {"step": events[-1].step, "version": events[-1].version} if events else {}


def _kept(run: Path, otherwise: str) -> str:
    steps = Checkpoints(run).steps
    return f"give one of its checkpoints: {', '.join(f'{run}@{step}' for step in steps)}" if steps else otherwise
