"""``tether probe``: how far a model's engine is from its trainer at equal weights, with and without replayed routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("probe")
@click.argument("source", metavar="MODEL|RUN")
@click.option("--engine-dtype", help="bf16 or float32: what the engine computes in; default: the run's, or bf16.")
@click.option(
    "--replay", metavar="routing", help="Ask for a replay of routes; a mixture of experts is replayed anyway."
)
@click.option("--task", "task_name", help="Whose prompts; default: the run's, or what the model was made for.")
@click.option("--set", "options", multiple=True, metavar="task.KEY=VALUE", help="Change an option of the task.")
@click.option("--prompts", default=64, show_default=True, type=int, help="Training prompts.")
@click.option("--completions", default=4, show_default=True, type=int, help="Of each prompt.")
@click.option("--max-tokens", type=int, help="Of a completion; default: the run's, or 32.")
@click.option("--temperature", type=float, help="Of the sampling; default: the run's, or 1.")
@click.option("--seed", default=0, show_default=True, type=int, help="Of prompts and samples.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for probe.html and probe.json; else none is made.")
@click.option("--device", default="auto", show_default=True)
def command(source: str, out: Path | None, **others: Any) -> None:
    """Sample with MODEL's engine, compute the same tokens as the trainer does, and show how far apart they are.

    Both sides have equal weights, those published to the engine in its own number format, so that the difference is
    the engine's arithmetic. A mixture of experts is shown with its routes replayed as well. The thresholds are for the
    correction estr, which needs one.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tether.cli.probe_table import aligned, notes_of, page_of, subtitle_of, table_of, text_plot, thresholds_of
    from tether.config.probe import ProbeSettings, probe
    from tether.report.probe import check_probe_folder, write_probe

    settings = ProbeSettings(source=source, **others)
    if out is not None:
        check_probe_folder(out)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        probed = probe(
            settings, lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        )
    click.echo(f"{source}: {subtitle_of(probed)}\n")
    for line in (*aligned(table_of(probed)), "", *notes_of(probed), ""):
        click.echo(line)
    if out is None:
        click.echo("share of tokens that are at least so far apart")
        for line in text_plot(probed):
            click.echo(f"  {line}")
        click.echo()
    click.echo("estr, on data without staleness; paste after tether train")
    for why, line in thresholds_of(probed):
        click.echo(f"  {why}:\n    {line}")
    if out is not None:
        for path in write_probe(out, page_of(probed), probed.numbers()):
            click.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
