"""``tether train``: run a recipe and show what it does."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import click


@click.command("train")
@click.argument("recipe", default="quickstart")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change one key of the recipe; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="Run directory; default runs/RECIPE-DATE-TIME.")
@click.option("--dry-run", is_flag=True, help="Print the resolved recipe and the staleness bound, then stop.")
def command(recipe: str, settings: tuple[str, ...], out: Path | None, dry_run: bool) -> None:
    """Train a model by a RECIPE: a name (quickstart) or a TOML file."""
    from tether.cli.console import TrainingConsole, print_recipe
    from tether.config.recipe import load

    bound = load(recipe, settings)
    if dry_run:
        from tether.config.build import check

        check(bound, out)
        print_recipe(bound.resolved())
        return
    from tether.config.build import train

    folder = out or Path("runs") / f"{bound.name}-{datetime.now():%Y%m%d-%H%M%S}"
    with TrainingConsole(bound.resolved(), folder) as console:
        try:
            train(bound, folder, observers=(console.on_event,))
        except KeyboardInterrupt as stop:
            sys.exit(getattr(stop, "exit_code", 130))
    console.print_summary()
