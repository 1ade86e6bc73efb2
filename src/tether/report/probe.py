"""One probe as one HTML file, and its numbers as JSON: no network, no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

import numpy as np
from bokeh.embed import components
from bokeh.models import LegendItem
from bokeh.plotting import figure
from bokeh.resources import Resources
from numpy.typing import NDArray

from tether.errors import RunDirectoryError
from tether.journal.writer import write_whole
from tether.report.figures import MOST_POINTS, frame, legend
from tether.report.page import style
from tether.report.panels import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, Panel

PAGE_FILE: Final = "probe.html"
NUMBERS_FILE: Final = "probe.json"
COLOURS: Final = (ORANGE, BLUE, GREEN, VIOLET, RED, GREY)
"""Of the ways to compute the tokens, in their order."""
LEAST_DRAWN: Final = 1e-7
"""Nats: where a log axis begins; what is nearer, or equal, stands below it."""

SURVIVAL: Final = Panel(
    title="How many tokens are how far apart",
    unit="share of tokens",
    says="Share of sampled tokens whose |d| is at least so large. Dashed: of the tokens that other experts "
    "computed. A replay brings the dashed curve to where number formats alone would have it.",
    curves=(),
)
BY_LOGP: Final = Panel(
    title="Which tokens",
    unit="|d|, nats",
    says="Each token's |d| against the log-prob that the engine sampled it with. Of many tokens the farthest apart are "
    "drawn, and of the others an even choice.",
    curves=(),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way in which the trainer computed the tokens; arrays are ``[T]``."""

    label: str
    abs_d: NDArray[np.float32]
    logp_behavior: NDArray[np.float32]
    rerouted: NDArray[np.bool_] | None = None
    """Tokens that the trainer's own routers would send elsewhere, if any could be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePage:
    """What stands on the page, in words; whatever comes from outside is escaped when it is drawn."""

    title: str
    subtitle: str
    table: Sequence[Sequence[str]]
    """The head, then a row for each number: its name, and its value each way."""
    notes: Sequence[str]
    thresholds: Sequence[tuple[str, str]]
    """What a line is for, and the line."""
    ways: Sequence[Way]


def check_probe_folder(folder: Path) -> None:
    """Make the folder, or refuse it: an earlier probe may be overwritten, anything else may not."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        others = sorted(path.name for path in folder.iterdir() if path.name not in (PAGE_FILE, NUMBERS_FILE))
    except OSError as error:
        raise RunDirectoryError(f"cannot write a probe to {folder}: {error.strerror}; choose another folder") from error
    if others:
        raise RunDirectoryError(
            f"a probe is written to a folder that is new, empty, or an earlier probe's; {folder} holds {others[0]!r}"
            f"{f' and {len(others) - 1} more' if len(others) > 1 else ''}: choose another folder"
        )


def write_probe(folder: Path, page: ProbePage, numbers: Mapping[str, Any]) -> tuple[Path, Path]:
    """Write page and numbers; returns their paths."""
    paths = folder / PAGE_FILE, folder / NUMBERS_FILE
    write_whole(paths[0], render(page).encode("utf-8", "backslashreplace"))
    write_whole(paths[1], json.dumps(numbers, indent=1, allow_nan=False).encode())
    return paths


def render(page: ProbePage) -> str:
    """The whole page."""
    script, divs = components({"survival": _survival(page.ways), "by_logp": _by_logp(page.ways)})
    cards = [
        f'<div class="card"><h3>{escape(panel.title)}</h3>{divs[name]}<p>{escape(panel.says)}</p></div>'
        for name, panel in (("survival", SURVIVAL), ("by_logp", BY_LOGP))
    ]
    head, *rows = page.table
    return Template((files("tether.report") / "probe.html").read_text(encoding="utf-8")).substitute(
        title=escape(page.title),
        subtitle=escape(page.subtitle),
        style=style(),
        table=_row("th", head) + "".join(_row("td", row) for row in rows),
        notes="".join(f'<p class="soft">{escape(note)}</p>' for note in page.notes),
        figures="\n".join(cards),
        thresholds="".join(
            f'<p class="soft">{escape(why)}</p><pre class="paste">{escape(line)}</pre>' for why, line in page.thresholds
        ),
        bokeh="\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
        script=script,
    )


def survival(abs_d: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Every value above 0 that occurs, ascending, with the share of all values that are at least as large.

    >>> x, share = survival(np.array([0.0, 0.5, 0.25, 0.5], np.float32))
    >>> x.tolist(), share.tolist()
    ([0.25, 0.5], [0.75, 0.5])
    """
    values, counts = np.unique(abs_d.astype(np.float64), return_counts=True)
    share = counts[::-1].cumsum()[::-1] / len(abs_d)
    return values[values > 0], share[values > 0]


def drawn_tokens(abs_d: NDArray[np.float32], most: int = MOST_POINTS) -> NDArray[np.int64]:
    """Which tokens to draw: all, or the farthest apart and of the others every so manieth, half and half."""
    order = np.argsort(-abs_d, kind="stable")
    if len(order) <= most:
        return order
    far, rest = order[: most // 2], order[most // 2 :]
    return np.concatenate([far, rest[:: -(-len(rest) // (most - most // 2))]])


def _survival(ways: Sequence[Way]) -> figure:
    axes = {"x_axis_type": "log", "y_axis_type": "log", "x_axis_label": "|d|, nats"}
    plot = frame(SURVIVAL, **axes)
    items = []
    for way, colour in zip(ways, COLOURS, strict=False):
        items.append(_falling(plot, way.abs_d, {"color": colour}, way.label))
    for way, colour in zip(ways, COLOURS, strict=False):
        if way.rerouted is not None and way.rerouted.any():
            items.append(
                _falling(plot, way.abs_d[way.rerouted], {"color": colour, "line_dash": "dashed"}, "rerouted tokens")
            )
    plot.add_layout(legend(items), "above")
    return plot


def _falling(plot: figure, abs_d: NDArray[np.float32], pen: Mapping[str, str], label: str) -> LegendItem:
    x, share = survival(abs_d)
    drawn = np.flatnonzero(x >= LEAST_DRAWN)
    # of many values, evenly on a log scale from the far end: the tail one by one
    at = np.unique(np.round(len(drawn) - np.geomspace(1, len(drawn) + 1, MOST_POINTS)).astype(int).clip(min=0))
    drawn = drawn[at[at < len(drawn)]]
    line = plot.line(x[drawn], share[drawn], line_width=1.8, **pen)
    return LegendItem(label=label, renderers=[line])


def _by_logp(ways: Sequence[Way]) -> figure:
    plot = frame(BY_LOGP, y_axis_type="log", x_axis_label="logp_behavior, nats")
    items = []
    for way, colour in zip(ways, COLOURS, strict=False):
        at = drawn_tokens(way.abs_d)
        at = at[way.abs_d[at] >= LEAST_DRAWN]
        dots = plot.scatter(way.logp_behavior[at], way.abs_d[at], color=colour, size=3, alpha=0.5)
        items.append(LegendItem(label=way.label, renderers=[dots]))
    plot.add_layout(legend(items), "above")
    return plot


def _row(kind: str, cells: Sequence[str]) -> str:
    first, *values = cells
    numbers = "".join(f'<{kind} class="num">{escape(value)}</{kind}>' for value in values)
    return f"<tr><{kind}>{escape(first)}</{kind}>{numbers}</tr>"
