"""``tether verify``: a verdict on every answer of a file, and where the modes of the verifier disagree."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from tether.errors import ConfigError, DataError, RunDirectoryError
from tether.verifier.verdict import Mode, Verdict

if TYPE_CHECKING:
    from tether.verifier.policies import Policies
    from tether.verifier.pool import Verifier

KEYS: Final = ("id", "answer", "reference")
MOST_SHOWN: Final = 20
"""Disagreements that are printed."""
TELLS_S: Final = 5.0
"""Between two lines of progress."""


@click.command("verify")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mode", default="robust", show_default=True, type=click.Choice(get_args(Mode)), help="How to compare.")
@click.option("--out", type=click.Path(path_type=Path), help="Where the verdicts go; default: standard output.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1, 256), help="Processes that judge.")
@click.option("--limit", default=1.0, show_default=True, type=float, help="Seconds of CPU time a pair.")
@click.option("--set", "settings", multiple=True, metavar="policies.KEY=VALUE", help="What counts as the same.")
@click.option("--compare/--no-compare", default=True, show_default=True, help="Run the other modes, too.")
def command(file: Path, mode: Mode, out: Path | None, compare: bool, **others: Any) -> None:
    """Grade the answers of FILE, lines of {"id": ..., "answer": ..., "reference": ...}; answers are whole responses.

    Writes a line each with id, status, extracted, stage and policy, in the order of FILE; says on standard error what
    there was, how fast, and which answers the modes judge differently.
    """
    count = sum(1 for _ in entries(file))
    grading = Grading(file=file, count=count, workers=min(others["workers"], count), limit_s=others["limit"])
    policies = policies_of(others["settings"])
    if out is not None and out.exists() and out.samefile(file):
        raise ConfigError(f"--out must not be the file that is read, {file}; give another one")
    with _written(out) as write:
        verdicts = graded(grading, mode, policies, write)
    if compare:
        modes = dict.fromkeys((mode, *get_args(Mode)))
        by_mode = {m: verdicts if m == mode else graded(grading, m, policies if m == "robust" else None) for m in modes}
        _tell_disagreements(grading, by_mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grading:
    """What is graded, and with what."""

    file: Path
    count: int
    """Pairs in it."""
    workers: int
    limit_s: float

    def verifier(self, mode: Mode, policies: Policies | None) -> Verifier:
        """One for a mode."""
        from tether.verifier.pool import Verifier

        return Verifier(mode, policies=policies, workers=self.workers, limit_s=self.limit_s)


def entries(file: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file, each checked; ``DataError`` with its number for what is none."""
    num_entries = 0
    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    num_entries += 1
                    yield _entry(line, f"{file}, line {number}")
    except OSError as error:
        raise DataError(
            f"a file of answers must be readable; {file} gave {error.strerror}; give another one"
        ) from error
    if not num_entries:
        raise DataError(f"a file of answers has a line a pair, with the keys {', '.join(KEYS)}; {file} is empty")


def _entry(line: bytes, where: str) -> dict[str, Any]:
    try:
        entry: Any = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: every line must be a JSON object; {error}; the line is {line[:80]!r}") from error
    if not isinstance(entry, dict):
        raise DataError(f"{where}: every line must be a JSON object; got {type(entry).__name__} {line[:80]!r}")
    if missing := [key for key in KEYS if key not in entry]:
        raise DataError(
            f"{where}: {missing[0]!r} is missing; expected the keys {', '.join(KEYS)}, found "
            f"{', '.join(entry) or 'none'}; rename or add them"
        )
    for key in ("answer", "reference"):
        if not isinstance(entry[key], str):
            raise DataError(
                f"{where}: {key!r} must be text; got {json.dumps(entry[key])[:80]}; put it in quotes, as it would "
                'stand in an answer: "3" and not 3'
            )
    return entry


def policies_of(settings: tuple[str, ...]) -> Policies | None:
    """Those of ``--set``; ``None`` where nothing is set."""
    if not settings:
        return None
    from tether.config.bind import bind
    from tether.config.overrides import parse
    from tether.verifier.policies import Policies

    table: dict[str, Any] = {}
    for text in settings:
        key, value = parse(text)
        room, _, name = key.partition(".")
        if room != "policies" or not name:
            raise ConfigError(
                f"--set of verify changes policies.KEY=VALUE, such as policies.percent=value; got {text!r}"
            )
        table[name] = value
    return bind(Policies, table, "policies")


def graded(
    grading: Grading, mode: Mode, policies: Policies | None, write: Callable[[str], object] | None = None
) -> list[Verdict]:
    """A verdict a pair, written as soon as it is known; says how it went."""
    verdicts: list[Verdict] = []
    with grading.verifier(mode, policies) as verifier:
        began_s = told_s = time.monotonic()
        pairs = ((entry["answer"], entry["reference"]) for entry in entries(grading.file))
        for entry, verdict in zip(entries(grading.file), verifier.stream(pairs), strict=True):
            verdicts.append(verdict)
            if write is not None:
                write(json.dumps(_line(entry, verdict)) + "\n")
            if time.monotonic() > told_s + TELLS_S:
                told_s = time.monotonic()
                click.echo(f"{mode}: {len(verdicts):,} of {grading.count:,} pairs", err=True)
        took_s = time.monotonic() - began_s
    counts = Counter(verdict.status for verdict in verdicts).most_common()
    click.echo(f"{mode}: {', '.join(f'{count:,} {status}' for status, count in counts)}", err=True)
    rate, workers = len(verdicts) / max(took_s, 1e-9), f"{grading.workers} worker{'s' * (grading.workers > 1)}"
    click.echo(f"{len(verdicts):,} pairs in {took_s:.2f} s: {rate:,.0f} pairs/s ({workers})", err=True)
    return verdicts


def _line(entry: dict[str, Any], verdict: Verdict) -> dict[str, Any]:
    return {
        "id": entry["id"],
        "status": verdict.status,
        "extracted": verdict.extracted,
        "stage": verdict.stage,
        "policy": verdict.policy,
    }


@contextmanager
def _written(out: Path | None) -> Iterator[Callable[[str], None]]:
    """What writes a line at a time, for whoever stops this; a full disk is said at once."""
    place = "standard output" if out is None else str(out)
    try:
        lines = sys.stdout if out is None else out.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out must be a file that can be written; {out} gave {error.strerror}") from error

    def write(line: str) -> None:
        try:
            lines.write(line)
            lines.flush()
        except BrokenPipeError:  # whoever reads has seen enough
            raise
        except OSError as error:
            nowhere = os.open(os.devnull, os.O_WRONLY)  # for what is left in its buffer, which is written at the end
            os.dup2(nowhere, lines.fileno())
            os.close(nowhere)
            raise RunDirectoryError(
                f"every verdict must be written, and {place} gave {error.strerror}; the last line may be cut: "
                "make room, or give another --out"
            ) from error

    try:
        yield write
    finally:
        if out is not None:
            with suppress(OSError):
                lines.close()


def _tell_disagreements(grading: Grading, by_mode: dict[Mode, list[Verdict]]) -> None:
    """Which answers are right in one mode and not in another; strict-int counts where the reference is its own."""
    from tether.verifier.audit import agreement, disagreements

    general: dict[Mode, list[Verdict]] = {mode: seen for mode, seen in by_mode.items() if mode != "strict-int"}
    own = [n for n, verdict in enumerate(by_mode["strict-int"]) if not verdict.stage.startswith("reference:")]
    integers: dict[Mode, list[Verdict]] = {mode: [seen[n] for n in own] for mode, seen in by_mode.items()}
    for (one, other), share in {**agreement(integers), **agreement(general)}.items():
        judged = len(own) if "strict-int" in (one, other) else grading.count
        if judged:
            click.echo(f"{one} and {other} agree on {share:.1%} of {judged:,} pairs", err=True)
    found = {d.index: d.by_mode for d in disagreements(general)} | {
        own[d.index]: d.by_mode for d in disagreements(integers)
    }
    for index, entry in enumerate(entries(grading.file)):
        if index in found:
            said = "; ".join(f"{mode} {v.status} {v.extracted!r:.60} ({v.stage})" for mode, v in found[index].items())
            click.echo(f"  {entry['id']!r:.60}, reference {entry['reference']!r:.60}: {said}", err=True)
        if index >= max(sorted(found)[:MOST_SHOWN], default=-1):
            break
    if len(found) > MOST_SHOWN:
        click.echo(f"  and {len(found) - MOST_SHOWN:,} more; --mode writes what one mode says of each", err=True)
