"""``tether data``: what is in data files before a run reads them, and a small file to begin with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tether.data.sample import MOST_ROWS, sample_rows

_SHOWN = 160


@click.group("data")
def command() -> None:
    """Look into data files, or make a small one."""


@command.command("look")
@click.argument("paths", nargs=-1, required=True)
@click.option("--split", default="train", show_default=True, help="Of a folder or a hub data set.")
@click.option("--subset", default="", help="Configuration of a hub data set.")
@click.option("--layout", default="", help="Name of the layout; default: recognised by its columns.")
@click.option("--prompt", default="", help="Column of the problem.")
@click.option("--reference", default="", help="Column of the reference.")
@click.option("--examples", default=3, show_default=True, type=click.IntRange(0, 100), help="Problems shown.")
def look(paths: tuple[str, ...], examples: int, prompt: str, reference: str, **how: Any) -> None:
    """Say what layout PATHS have, how many problems, which of them repeat or contradict each other, and show some."""
    from tether.data.pool import load_pool
    from tether.data.source import Columns, Source

    columns = Columns(prompt=prompt, reference=reference)
    sources = [Source(path=path, columns=columns, **how) for path in paths]
    pool = load_pool(sources, (), lambda identity: False, "drop")
    for census, part in zip(pool.censuses, pool.train, strict=True):
        click.echo(f"{census.path}: layout {census.layout}, {census.num_rows:,} rows, {len(part):,} problems")
        click.echo(f"  {census.num_repeated:,} rows repeat a problem, {census.num_conflicts:,} with another reference")
        for entry in part[:examples]:
            text = entry.text if len(entry.text) <= _SHOWN else f"{entry.text[:_SHOWN]}..."
            click.echo(f"  {entry.key}: {text!r} -> {entry.reference!r}")
    for notice in pool.notices:
        click.echo(f"note: {notice}")


@command.command("sample")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to make, .jsonl.")
@click.option("--count", default=MOST_ROWS, show_default=True, type=click.IntRange(1, MOST_ROWS), help="Problems.")
@click.option("--seed", default=0, show_default=True, help="Another one makes other problems.")
def sample(out: Path, count: int, seed: int) -> None:
    """Make a file of short sums, differences and products, in the layout of DAPO-Math-17k."""
    from tether.errors import RunDirectoryError

    if out.exists():
        raise click.UsageError(f"{out} is there already; give another name, or move it away")
    if out.suffix != ".jsonl":
        raise click.UsageError(f"a sample is written as JSONL; {out} must end in .jsonl")
    try:
        out.write_text("".join(json.dumps(row) + "\n" for row in sample_rows(count, seed)), encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(f"cannot write {out}: {error.strerror}; choose a place that can be written") from error
    click.echo(f"{out}: {count} problems; next: tether train smollm2-math --set task.path={out}")
