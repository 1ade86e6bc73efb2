"""``tether warmup``: make an embedded model again."""

from __future__ import annotations

from pathlib import Path

import click

from tether.models.catalog import EMBEDDED
from tether.tasks import arithmetic, sorting
from tether.tasks.lessons import Course, Pupil


def course_of(task: str) -> Course:
    """The lessons of a task, at the difficulty that it has by default."""
    pupils: dict[str, Pupil] = {
        "arithmetic": arithmetic.Pupil(task=arithmetic.Arithmetic()),
        "sorting": sorting.Pupil(task=sorting.Sorting()),
    }
    return Course(pupils[task])


@click.command("warmup")
@click.option("--model", default="tiny-moe", show_default=True, type=click.Choice(list(EMBEDDED)), help="Which one.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="New folder for the model.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of weights and lessons.")
@click.option("--steps", type=click.IntRange(min=1), help="Most updates; default: the model's own, 1000 or 1500.")
@click.option(
    "--target",
    default=0.25,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Held-out accuracy at temperature 1 to stop at.",
)
def command(model: str, out: Path, seed: int, steps: int | None, target: float) -> None:
    """Pre-train a new tiny model on its task until it writes well-formed answers that are sometimes right."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tether.models.warmup import WELL_FORMED, WarmupOptions, WarmupProgress, run_warmup

    steps = EMBEDDED[model].steps if steps is None else steps
    options = WarmupOptions(model=model, seed=seed, steps=steps, target=target)
    console = Console()
    columns = (TextColumn("warm-up"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("loss {task.fields[loss]:.3f}"), console=console, transient=True) as bar:
        task = bar.add_task("warm-up", total=steps, loss=float("nan"))

        def show(now: WarmupProgress) -> None:
            bar.update(task, completed=now.step, loss=now.loss)
            if now.marks is not None:
                bar.console.print(
                    f"update {now.step:4d}  loss {now.loss:.3f}  accuracy at temperature 1 {now.marks.right:.3f}  "
                    f"well-formed {now.marks.well_formed:.3f}",
                    highlight=False,
                )

        result = run_warmup(course_of(EMBEDDED[model].task), options, out=out, progress=show)
    if not result.is_reached:
        console.print(
            f"target {target:g}, with {WELL_FORMED:.0%} of the answers well-formed, not reached in {steps} updates",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"{result.folder}: {result.num_parameters:,} parameters, {result.num_steps} updates, accuracy at temperature 1 "
        f"{result.accuracy:.3f}, greedy {result.greedy_accuracy:.3f}, well-formed {result.well_formed:.3f}, "
        f"{result.duration_s:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
