"""``tether model``: a real pre-trained model as a Hugging Face folder, made once."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tether.models.catalog import EMBEDDED, OBTAINABLE


@click.command("model")
@click.argument("name", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="The folder to make; new or empty.")
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "bfloat16"]),
    help="Of the weights in the folder; bfloat16 rounds them once more and takes half the room.",
)
def command(name: str | None, out: Path | None, dtype: str) -> None:
    """Write the pre-trained model NAME as a folder that recipes can use; without a NAME, list the models."""
    from tether.errors import UnknownNameError

    if name is None:
        _print_all()
        return
    if name in EMBEDDED:
        raise UnknownNameError(f"{name} comes with the package and needs no folder; use it as model.path={name}")
    if name not in OBTAINABLE:
        raise UnknownNameError(f"no model {name!r} to make; there is {', '.join(OBTAINABLE)}")
    if out is None:
        raise click.UsageError(f"give the folder to make, such as: tether model {name} --out {name}")
    _make(out, dtype)


def _make(out: Path, dtype: str) -> None:
    from tether.models.smollm2 import make

    started = time.perf_counter()
    made = make(out, dtype=dtype, told=click.echo)
    what = f"{made.num_parameters:,} parameters, {dtype}, {made.num_bytes / 1e6:.0f} MB"
    if made.is_new:
        click.echo(f"{made.folder}: {what}, {time.perf_counter() - started:.0f} s")
    else:
        click.echo(f"{made.folder} holds the model already and was left alone: {what}")
    click.echo(f"next: tether train smollm2-arithmetic --set model.path={made.folder}")


def _print_all() -> None:
    width = max(map(len, [*EMBEDDED, *OBTAINABLE]))
    click.echo("with the package, as model.path")
    for name, embedded in EMBEDDED.items():
        click.echo(f"  {name.ljust(width)}  warmed up on the task {embedded.task}")
    click.echo("to be made once, with tether model NAME --out DIR")
    for name, summary in OBTAINABLE.items():
        click.echo(f"  {name.ljust(width)}  {summary}")
