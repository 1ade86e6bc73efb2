"""``tether train``: run a recipe and show what it does."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tether.config.recipe import Recipe
    from tether.records import Event


@click.command("train")
@click.argument("recipe", required=False)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one key of the recipe; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory; default runs/RECIPE-DATE-TIME.")
@click.option("--resume", type=click.Path(path_type=Path), metavar="RUN", help="Go on with a run that was stopped.")
@click.option("--dry-run", is_flag=True, help="Print the resolved recipe and the staleness bound, then stop.")
def command(
    recipe: str | None, settings: tuple[str, ...], out: Path | None, resume: Path | None, dry_run: bool
) -> None:
    """Train a model by a RECIPE: a name (default quickstart) or a TOML file.

    Ctrl-C finishes the step under way, saves and stops; a second one stops now. Either way --resume goes on.
    """
    if resume is not None:
        if out is not None:
            raise click.UsageError("--resume goes on in the folder of the run; leave out --out")
        _resume(resume, recipe, settings, dry_run)
        return
    from tether.cli.console import print_recipe
    from tether.config.recipe import load

    bound = load(recipe or "quickstart", settings)
    from tether.config.build import check, train

    check(bound, out)
    if dry_run:
        print_recipe(bound.resolved())
        return
    folder = out or Path("runs") / f"{bound.name}-{datetime.now():%Y%m%d-%H%M%S}"
    _follow(bound, folder, 0, lambda observer: train(bound, folder, observers=(observer,)))


def _resume(folder: Path, recipe: str | None, settings: tuple[str, ...], dry_run: bool) -> None:
    from tether.cli.console import print_recipe
    from tether.config.resume import plan

    planned = plan(folder, recipe, settings, told=click.echo)
    for change in planned.changes:
        click.echo(f"changed: {change}")
    if planned.is_finished:
        click.echo(f"{folder} is finished: all {planned.recipe.run.steps} steps are done; set run.steps for more")
        return
    step = 0 if planned.checkpoint is None else planned.checkpoint.step
    if planned.checkpoint is None:
        click.echo(f"{folder} has no checkpoint yet: it starts over; what there was goes to rolled-back/")
    else:
        click.echo(f"{folder} goes on after step {step}; what came later goes to rolled-back/")
    if dry_run:
        click.echo("nothing was touched (--dry-run); the recipe it would go on with:\n")
        print_recipe(planned.recipe.resolved())
        return
    from tether.config.build import go_on

    _follow(planned.recipe, folder, step, lambda observer: go_on(planned, observers=(observer,)))


def _follow(recipe: Recipe, folder: Path, step: int, work: Callable[[Callable[[Event], None]], object]) -> None:
    """Do the work and show it; a stop by a signal becomes the exit code."""
    from tether.cli.console import TrainingConsole

    with TrainingConsole(recipe.resolved(), folder, first=step) as console:
        try:
            work(console.on_event)
        except KeyboardInterrupt as stop:
            console.on_interrupt()
            sys.exit(getattr(stop, "exit_code", 130))
    console.print_summary()
