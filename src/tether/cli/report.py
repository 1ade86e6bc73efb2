"""``tether report``: the curves of a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The file to write, instead of RUN/report.html.")
def command(run: Path, out: Path | None) -> None:
    """Write the curves of RUN into one HTML file that opens offline."""
    from tether.report import write_report

    path = write_report(run, out)
    click.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
