"""``tether doctor``: whether this machine can run tether, and what to do where it cannot."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from rich.console import Console

    from tether.machine.finding import Finding

STYLES: Final = {"ok": "green", "warn": "yellow", "fail": "bold red"}
INDENT: Final = 33
"""Columns before a value."""
LEAST_ROOM: Final = 30
"""Columns of a value however narrow the terminal is."""


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON, and nothing else.")
@click.option("--self-test/--no-self-test", default=True, help="Train a few steps of the quickstart, about 20 seconds.")
def command(as_json: bool, self_test: bool) -> None:
    """Check whether this machine can run tether; exit code 1 if something fails."""
    from tether.machine.examination import examine
    from tether.machine.surroundings import Surroundings

    here = Surroundings()
    if as_json:
        with redirect_stdout(sys.stderr):  # whatever libraries print
            findings = list(examine(here, self_test=self_test))
        click.echo(json.dumps(as_object(findings), indent=2))
    else:
        findings = show(examine(here, self_test=self_test))
    sys.exit(int(has_failed(findings)))


def has_failed(findings: Sequence[Finding]) -> bool:
    """Whether something keeps tether from running."""
    return any(finding.status == "fail" for finding in findings)


def as_object(findings: Sequence[Finding]) -> dict[str, object]:
    """What ``--json`` prints."""
    return {"schema": 1, "ok": not has_failed(findings), "findings": [asdict(finding) for finding in findings]}


def show(findings: Iterable[Finding]) -> list[Finding]:
    """Print each finding as it comes, its section once before the first of it, and what they amount to."""
    from tether.cli.console import plain_console

    console = plain_console()
    told: list[Finding] = []
    for finding in findings:
        _print(console, finding, is_first=not told or told[-1].section != finding.section)
        told.append(finding)
    counts = {status: sum(finding.status == status for finding in told) for status in STYLES}
    verdict = "this machine cannot run tether yet" if counts["fail"] else "this machine can run tether"
    style = STYLES["fail" if counts["fail"] else "warn" if counts["warn"] else "ok"]
    sums = f"{counts['ok']} ok, {counts['warn']} to look at, {counts['fail']} failed"
    console.print(f"{verdict}: {sums}", style=style, soft_wrap=True)
    return told


def _print(console: Console, finding: Finding, *, is_first: bool) -> None:
    """``section  status  name  value``, the way out below; what is long goes on under its own column."""
    from rich.text import Text

    section = finding.section if is_first else ""
    line = Text.assemble(
        (f"{section:<12}", "bold"), (f"{finding.status:<6}", STYLES[finding.status]), f"{finding.name:<14} "
    )
    indent, room = " " * INDENT, max(LEAST_ROOM, console.width - INDENT)
    for number, part in enumerate(Text(finding.value).wrap(console, room)):
        console.print(line.append_text(part) if not number else Text(indent).append_text(part), soft_wrap=True)
    style = "dim" if finding.status == "ok" else STYLES[finding.status]
    for number, part in enumerate(Text(finding.way_out, style).wrap(console, room - 3) if finding.way_out else ()):
        console.print(Text(indent).append("   " if number else "-> ", style).append_text(part), soft_wrap=True)
