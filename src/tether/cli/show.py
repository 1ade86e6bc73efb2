"""``tether show``: the stored samples of a run, or one of them token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tether.journal import RunView, Sample

By = Literal["trainable", "version", "mismatch"]

BANDS: Final = ((0.02, "green"), (0.1, "yellow"), (0.3, "dark_orange"), (float("inf"), "bold red"))
"""Colours of ``|d|`` in nats: up to each edge."""
VERSIONS: Final = ("cyan", "magenta", "yellow", "green", "blue", "bright_red")
"""Colours of versions, in the order in which a rollout meets them."""
PIPE_WIDTH: Final = 160
"""Width of tables where there is no terminal to ask."""


@click.command("show")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("rollout", required=False)
@click.option(
    "--by",
    type=click.Choice(["trainable", "version", "mismatch"]),
    default="mismatch",
    show_default=True,
    help="What the colours of a rollout's tokens mean.",
)
def command(run: Path, rollout: str | None, by: By) -> None:
    """Show the stored samples of RUN, or the tokens of one ROLLOUT."""
    view = RunView(run)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PIPE_WIDTH)
    for gap in view.gaps:
        console.print(Text(str(gap), style="yellow" if gap.is_torn else "bold red"), soft_wrap=True)
    if rollout is None:
        _show_all(console, view)
    else:
        _show_one(console, view.rollout(rollout), by)


def _show_all(console: Console, run: RunView) -> None:
    if not run.rollouts:
        console.print(f"no samples are stored in {run.folder}; run.samples says how many a run keeps", soft_wrap=True)
        return
    table = _table("rollout", "step", "version", "staleness", "reward", text=("prompt", "completion"))
    for sample in run.rollouts:
        table.add_row(
            Text(visible(sample.id)),
            str(sample.step),
            _span(sample.version.tolist()),
            _span(sample.staleness.tolist()),
            f"{sample.reward:g}",
            Text(visible(sample.prompt)),
            Text(visible(sample.completion)),
        )
    console.print(table)
    console.print("tether show RUN ROLLOUT shows one token by token", style="dim")


def _show_one(console: Console, sample: Sample, by: By) -> None:
    styles = styles_of(sample, by)
    console.print(
        f"rollout {visible(sample.id)}   step {sample.step}   reward {sample.reward:g}   "
        f"advantage {sample.advantage:+.4g}   {len(sample)} tokens",
        style="bold",
        markup=False,
        soft_wrap=True,
    )
    console.print(Text("prompt      ", style="dim").append(visible(sample.prompt), style="default"), soft_wrap=True)
    if sample.grades:
        console.print(_rewards(sample), soft_wrap=True)
    line = Text("completion  ", style="dim")
    for text, style in zip(sample.token_texts, styles, strict=True):
        line.append(visible(text), style=style)
    console.print(line, soft_wrap=True)
    console.print(Text("colours     ", style="dim").append_text(_key(sample, by)), soft_wrap=True)
    table = _table("position", text=("token",))
    kept = () if sample.num_kept is None else ("drawn of",)
    for name in ("id", "version", "staleness", "trainable", "logp engine", "logp trainer", "d", *kept):
        table.add_column(name, justify="right", no_wrap=True)
    for position, style in enumerate(styles):
        table.add_row(*_token_row(sample, position, style))
    console.print(table)


def _rewards(sample: Sample) -> Text:
    """What each part of the reward gave, and how it came to it; whether the answer is right."""
    line = Text("rewards     ", style="dim")
    if sample.is_right is not None:
        line.append("right  " if sample.is_right else "wrong  ", style="green" if sample.is_right else "red")
    for label, grade in sample.grades.items():
        found = None if grade.extracted is None else f"found {grade.extracted!r}"
        why = ", ".join(words for words in (grade.status, found, grade.stage) if words)
        line.append(visible(f"{label} {grade.value:g}{f' ({why})' if why else ''}  "), style="default")
    return line


def _token_row(sample: Sample, position: int, style: str) -> tuple[str | Text, ...]:
    logp, mismatch = sample.logp, sample.mismatch
    return (
        str(position),
        Text(visible(sample.token_texts[position]), style=style),
        str(sample.token_ids[position]),
        str(sample.version[position]),
        str(sample.staleness[position]),
        "yes" if sample.trainable[position] else "no",
        f"{sample.logp_behavior[position]:.4f}",
        "-" if logp is None else f"{logp[position]:.4f}",
        Text("-") if mismatch is None else Text(f"{mismatch[position]:+.4f}", style=style),
        *(() if sample.num_kept is None else (f"{sample.num_kept[position]} ids",)),
    )


def styles_of(sample: Sample, by: By) -> list[str]:
    """The colour of each token; what is not trained is dim whatever the colours mean."""
    if by == "version":
        order = list(dict.fromkeys(sample.version.tolist()))
        styles = [VERSIONS[order.index(version) % len(VERSIONS)] for version in sample.version.tolist()]
    elif by == "mismatch" and sample.mismatch is not None:
        styles = [next(style for edge, style in BANDS if abs(d) <= edge) for d in sample.mismatch.tolist()]
    else:
        styles = ["green" if by == "trainable" else "default"] * len(sample)
    return [style if is_on else "dim" for style, is_on in zip(styles, sample.trainable.tolist(), strict=True)]


def _key(sample: Sample, by: By) -> Text:
    """What the colours mean."""
    key = Text()
    if by == "version":
        for place, version in enumerate(dict.fromkeys(sample.version.tolist())):
            key.append(f"version {version}  ", style=VERSIONS[place % len(VERSIONS)])
    elif by == "mismatch":
        below = "|d| <= "
        for edge, style in BANDS:
            key.append(f"{below}{edge}  " if edge < float("inf") else "more  ", style=style)
            below = "<= "
    else:
        key.append("trained  ", style="green")
    return key.append("not trained", style="dim")


def visible(text: str) -> str:
    r"""Text on one line, with nothing in it that a terminal would obey.

    >>> visible("4+3\n\x1b[31m5")
    '4+3\\n\\x1b[31m5'
    """
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _span(values: list[int]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}..{high}"


def _table(*numbers: str, text: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in numbers:
        table.add_column(name, justify="left" if name == "rollout" else "right", no_wrap=True)
    for name in text:
        table.add_column(name, overflow="fold")
    return table
