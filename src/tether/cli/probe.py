"""``tether probe``: how far engines are from a model's trainer at equal weights, and which setting brings them near."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tether.config.probe import Probed


@click.command("probe")
@click.argument("source", metavar="MODEL|RUN")
@click.option("--engine", "engines", multiple=True, metavar="KIND", help="torch, vllm, ...; several are compared.")
@click.option(
    "--engine-dtype",
    "engine_dtypes",
    multiple=True,
    help="bf16 or float32: what the engine computes in; default: the run's, or bf16. Several are compared.",
)
@click.option("--trainer-dtype", help="bf16 or float32: what the trainer computes in; default: the run's, or float32.")
@click.option(
    "--replay", metavar="routing|support", help="Ask for a replay; all that can be replayed is replayed anyway."
)
@click.option("--trials/--no-trials", default=True, help="Try settings that may remove the mismatch.")
@click.option("--task", "task_name", help="Whose prompts; default: the run's, or what the model was made for.")
@click.option("--set", "options", multiple=True, metavar="KEY=VALUE", help="An option: task.KEY or engine.KEY.")
@click.option("--prompts", default=64, show_default=True, type=int, help="Training prompts.")
@click.option("--completions", default=4, show_default=True, type=int, help="Of each prompt.")
@click.option("--max-tokens", type=int, help="Of a completion; default: the run's, or 32.")
@click.option("--temperature", type=float, help="Of the sampling; default: the run's, or 1.")
@click.option("--top-k", type=int, help="Sample among so many ids; default: the run's, or all.")
@click.option("--top-p", type=float, help="Sample among the fewest ids of this probability; default likewise.")
@click.option("--min-p", type=float, help="Sample among ids this times as probable as the first; default likewise.")
@click.option("--seed", default=0, show_default=True, type=int, help="Of prompts and samples.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for probe.html and probe.json; else none is made.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON and nothing else.")
@click.option("--device", default="auto", show_default=True)
def command(source: str, out: Path | None, as_json: bool, **others: Any) -> None:
    """Sample with an engine, compute the same tokens as the trainer does, and show how far apart they are.

    Both sides have equal weights, those published to the engine in its own number format, so that the difference is
    the engine's arithmetic: by the token's place, by its probability, by its experts. What can be replayed is shown
    replayed as well, and settings that may remove the mismatch are tried. The thresholds are for the correction estr,
    which needs one.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tether.cli.probe_comparison import several_page
    from tether.cli.probe_table import page_of
    from tether.config.probe import probe_all
    from tether.config.probe_settings import ProbeSettings
    from tether.report.probe import check_probe_folder, write_probe

    settings = ProbeSettings(source=source, **others)
    if out is not None:
        check_probe_folder(out)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("loading", total=None)
        found = probe_all(
            settings, lambda what, done, total: bar.update(task, description=what, completed=done, total=total)
        )
    numbers = {"probes": [probed.numbers() for probed in found]}
    if as_json:
        click.echo(json.dumps(numbers, indent=1, allow_nan=False))
    else:
        _show(source, found, plots=out is None)
    if out is not None:
        page = page_of(found[0]) if len(found) == 1 else several_page(found, subtitle_of(found))
        for path in write_probe(out, page, numbers):
            click.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)", err=as_json)


def subtitle_of(found: Sequence[Probed]) -> str:
    """What was sampled, of the first, and by which engines."""
    from tether.cli.probe_table import subtitle_of as of_one

    return of_one(found[0]) if len(found) == 1 else f"{', '.join(p.label for p in found)}; {of_one(found[0])}"


def _show(source: str, found: Sequence[Probed], *, plots: bool) -> None:
    from tether.cli.probe_comparison import comparison_of, several_notes
    from tether.cli.probe_table import aligned, notes_of, table_of, text_plot, thresholds_of, told_of

    click.echo(f"{source}: {subtitle_of(found)}\n")
    if len(found) > 1:
        for line in (*aligned(comparison_of(found)), "", *several_notes(found)):
            click.echo(line)
        return
    (probed,) = found
    for line in (*aligned(table_of(probed)), "", *notes_of(probed), "", *told_of(probed), ""):
        click.echo(line)
    if plots:
        click.echo("share of tokens that are at least so far apart")
        for line in text_plot(probed):
            click.echo(f"  {line}")
        click.echo()
    click.echo("estr, on data without staleness; paste after tether train")
    for why, line in thresholds_of(probed):
        click.echo(f"  {why}:\n    {line}")
