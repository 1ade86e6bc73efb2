"""``tether ledger``: what became of every rollout of a run, and whether the books close."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tether.cli.show import PIPE_WIDTH, visible
from tether.errors import RunDirectoryError
from tether.journal import RunView
from tether.journal.balance import Balance, FateSum
from tether.journal.writer import check_unwritten

MOST_PROMPTS = 5
"""Prompts that are named."""


@click.command("ledger")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the balance as one JSON object.")
def command(run: Path, as_json: bool) -> None:
    """Print the balance of RUN: what became of every rollout. Exit code 1 if the books do not close."""
    view = RunView(run)
    balance = Balance(view, is_written=_is_written(run))
    if as_json:
        click.echo(json.dumps(plain(balance), indent=1, ensure_ascii=False))
    else:
        _show(balance)
    if balance.faults:
        sys.exit(1)


def _is_written(folder: Path) -> bool:
    try:
        check_unwritten(folder)
    except RunDirectoryError:
        return True
    return False


def plain(balance: Balance) -> dict[str, Any]:
    """The balance as plain values."""
    return {
        "run": str(balance.run.folder),
        "status": balance.run.status,
        "is_written": balance.is_written,
        "closes": not balance.faults,
        "faults": list(balance.faults),
        "admitted": balance.admitted,
        "open": balance.open,
        "fates": {fate.fate: {k: v for k, v in asdict(fate).items() if k != "fate"} for fate in balance.fates},
        "dropped_lengths": None if balance.dropped is None else asdict(balance.dropped),
        "duplicates": list(balance.duplicates),
        "unused_prompts": list(balance.unused_prompts),
    }


def _show(balance: Balance) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)

    def say(words: str, style: str = "") -> None:
        console.print(Text(words, style), soft_wrap=True)

    say(_sum(balance), "bold")
    if balance.is_written:
        say("a process is writing this run: open rollouts are under way, or wait for their batch", "dim")
    if balance.fates:
        console.print(_table(balance))
        say("lengths in completion tokens, of rollouts whose sampling is known of", "dim")
    if balance.bias is not None:
        say(balance.bias)
    if unused := balance.unused_prompts:
        names = ", ".join(visible(id) for id in unused[:MOST_PROMPTS])
        more = ", ..." if len(unused) > MOST_PROMPTS else ""
        say(f"prompts asked, and never trained on: {len(unused):,} ({names}{more})")
    for fault in balance.faults:
        say(f"the books do not close: {visible(fault)}", "bold red")
    if balance.run.is_interrupted and not balance.is_written:
        say("somebody stopped this run; what is unused or in flight goes on with tether train --resume")
    if not balance.faults:
        say("every rollout has one fate" if balance.ended else "every rollout so far has one fate, or is open", "green")


def _sum(balance: Balance) -> str:
    """The equation of the books.

    A fate with reasons stands there once, for all of them.
    """
    kinds: dict[str, int] = {}
    for fate in balance.fates:
        kind = fate.fate.partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + fate.rollouts
    if balance.open:
        kinds["open"] = balance.open
    return f"admitted {balance.admitted:,} = " + (" + ".join(f"{kind} {n:,}" for kind, n in kinds.items()) or "0")


def _table(balance: Balance) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("fate", no_wrap=True)
    for name in ("rollouts", "share", "tokens", "share", "mean", "p50", "p90", "to trained"):
        table.add_column(name, justify="right", no_wrap=True)
    for fate in balance.fates:
        table.add_row(Text(visible(fate.fate)), *cells_of(fate))
    if balance.open:
        table.add_row("open", f"{balance.open:,}", f"{balance.open / balance.admitted:.1%}", *["-"] * 6)
    return table


def cells_of(fate: FateSum) -> tuple[str, ...]:
    """The numbers of a fate: rollouts, tokens, lengths."""
    lengths = fate.lengths
    return (
        f"{fate.rollouts:,}",
        f"{fate.share:.1%}",
        f"{fate.tokens:,}",
        f"{fate.token_share:.1%}",
        *(("-", "-", "-") if lengths is None else (f"{lengths.mean:.1f}", f"{lengths.p50:.0f}", f"{lengths.p90:.0f}")),
        "-" if fate.to_trained is None else f"{fate.to_trained:.2f} x",
    )
