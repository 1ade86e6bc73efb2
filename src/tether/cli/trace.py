"""``tether trace``: the time line of a run as a file for Perfetto or Chrome."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("trace")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file to write, instead of RUN/trace.json.")
def command(run: Path, out: Path | None) -> None:
    """Write the time line of RUN: generation, rewards, queue, training and publications."""
    from tether.journal import RunView
    from tether.report.trace import write_trace

    view = RunView(run)
    for gap in view.gaps:
        click.echo(str(gap), err=True)
    if not view.spans:
        click.echo(f"{run} kept no trace (run.trace): rollouts and queue are drawn from its ledger", err=True)
    path, num_events = write_trace(view, out)
    click.echo(f"{path}: {num_events:,} events; open it at ui.perfetto.dev or chrome://tracing")
