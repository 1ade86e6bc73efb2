"""``tether compare``: several runs side by side, and whether their difference can be chance."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tether.evals.comparison import Comparison

BETWEEN = 3
"""Characters beside the text of a column."""
NARROWEST = 16
"""Characters to which the column of a run may be folded before it goes into a table of its own."""


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN ...", type=click.Path(path_type=Path))
@click.option("--metric", default="accuracy", show_default=True, help="accuracy (avg@k), pass@K, maj@K, or journaled.")
@click.option(
    "--last", "place", flag_value="last", default="last", help="Differences of the last evaluation (default)."
)
@click.option("--best", "place", flag_value="best", help="Of the best one, which is optimistic.")
@click.option("--trailing", "place", flag_value="trailing", help="Of the mean of the last quarter of evaluations.")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE.html|.json", help="Write a page, or the numbers.")
def command(runs: tuple[Path, ...], metric: str, place: str, out: Path | None) -> None:
    """Compare RUN directories, or files of tether eval --out, each with the first.

    Runs that were asked the same problems are compared problem by problem.
    """
    if len(runs) < 2:
        raise click.UsageError(f"a comparison needs two runs or more; got {runs[0]} alone")
    if out is not None and out.suffix not in (".html", ".json"):
        raise click.UsageError(f"--out writes .html or .json; got {out}")
    from tether.evals.comparison import compare
    from tether.evals.outcome import read_outcome

    found = [read_outcome(run, label, metric) for run, label in zip(runs, labels_of(runs), strict=True)]
    comparison = compare(found, metric, place)
    _show(comparison)
    if out is not None:
        _write(comparison, out)
        click.echo(f"{out} ({out.stat().st_size / 1e6:.1f} MB)")


def labels_of(runs: Sequence[Path]) -> list[str]:
    """The name of each folder; as much of its path as it takes where names are the same.

    >>> labels_of([Path("a/run"), Path("b/run"), Path("c/other")])
    ['a/run', 'b/run', 'other']
    """
    paths = [run.resolve() for run in runs]
    labels = [path.name for path in paths]
    for length in range(2, max(len(path.parts) for path in paths)):
        counts = Counter(labels)
        labels = [
            label if counts[label] == 1 else "/".join(path.parts[-length:])
            for label, path in zip(labels, paths, strict=True)
        ]
    return labels


def _show(comparison: Comparison) -> None:
    from rich.console import Console

    from tether.cli.compare_table import groups_table, runs_table, settings_table

    console = Console()
    tables = {"Side by side": runs_table(comparison)}
    if comparison.groups:
        tables["Over seeds"] = groups_table(comparison)
    if comparison.settings:
        tables["What differs in the recipes"] = settings_table(comparison)
    for title, rows in tables.items():
        for part in parts_of(rows, console.width):
            console.print(_drawn(title, part))
    for note in comparison.notes:
        console.print(f"- {note}", markup=False, highlight=False)


def parts_of(rows: Sequence[tuple[str, ...]], width: int) -> list[list[tuple[str, ...]]]:
    """A table as several where it is too wide: the first column again, and the next of the others that fit.

    >>> parts_of([("", "one", "two"), ("p", "0.5", "0.25")], width=16)
    [[('', 'one'), ('p', '0.5')], [('', 'two'), ('p', '0.25')]]
    """
    widths = [BETWEEN + max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[1:] = [min(needed, NARROWEST) for needed in widths[1:]]
    parts, room = [[0]], width - widths[0]
    for place, needed in enumerate(widths[1:], start=1):
        if needed > room and len(parts[-1]) > 1:
            parts.append([0])
            room = width - widths[0]
        parts[-1].append(place)
        room -= needed
    return [[tuple(row[place] for place in part) for row in rows] for part in parts]


def _drawn(title: str, rows: Sequence[tuple[str, ...]]) -> object:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    head, *lines = rows
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for place, name in enumerate(head):
        table.add_column(Text(name), justify="right" if place else "left", overflow="fold", no_wrap=place == 0)
    for line in lines:
        table.add_row(*map(Text, line))
    return table


def _write(comparison: Comparison, out: Path) -> None:
    from tether.cli.compare_table import numbers_of, page_of
    from tether.journal.writer import write_whole
    from tether.report.comparison import write_comparison

    if out.suffix == ".html":
        write_comparison(out, page_of(comparison))
    else:
        write_whole(out, json.dumps(numbers_of(comparison), indent=1, allow_nan=False).encode())
