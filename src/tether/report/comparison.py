"""Several runs on one HTML page: their curves over each other, and tables side by side; no network, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Final, Literal

import numpy as np
from bokeh.embed import components
from bokeh.models import DataRange1d, HoverTool, LegendItem
from bokeh.plotting import figure
from bokeh.resources import Resources
from numpy.typing import NDArray

from tether.journal.reader import Series
from tether.journal.writer import write_whole
from tether.report.figures import FEW_POINTS, NUM_WINDOWS, frame, legend, running_mean, thin
from tether.report.page import style
from tether.report.panels import SEVERAL, Panel

REWARD: Final = Panel(
    title="Reward",
    unit="mean reward",
    says="Mean reward of the rollouts that each step trained on, pale, and its running mean. Only runs with the "
    "same reward can be held against each other.",
    curves=(),
)
PENS: Final = (("solid", "circle"), ("dashed", "triangle"), ("dotted", "square"), ("dashdot", "diamond"))
"""Line and marker of the seeds of one setting, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurves:
    """One run's lines; arrays are ``[n]``, one entry an evaluation."""

    label: str
    setting: int
    """Runs that differ by their seed alone have one number, and one colour."""
    seed: int
    """Which of them it is: its line and marker."""
    steps: NDArray[np.int64]
    values: NDArray[np.float64]
    low: NDArray[np.float64]
    """NaN where no interval is known."""
    high: NDArray[np.float64]
    reward: Series

    @property
    def colour(self) -> str:
        """Of its setting."""
        return SEVERAL[self.setting % len(SEVERAL)]

    @property
    def pen(self) -> tuple[str, str]:
        """Line and marker of its seed; settings that must share a colour are told apart by it, too."""
        return PENS[(self.seed + self.setting // len(SEVERAL)) % len(PENS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage:
    """What stands on the page, in words; whatever comes from outside is escaped when it is drawn."""

    title: str
    subtitle: str
    metric: str
    tables: Sequence[tuple[str, Sequence[Sequence[str]]]]
    """Heading, and head and rows: a name, and its value for each run."""
    notes: Sequence[str]
    curves: Sequence[RunCurves]


def write_comparison(path: Path, page: ComparisonPage) -> None:
    """Write the page."""
    write_whole(path, render(page).encode("utf-8", "backslashreplace"))


def render(page: ComparisonPage) -> str:
    """The whole page."""
    steps = DataRange1d(range_padding=0.02)
    measured = Panel(
        title=f"Held-out {page.metric}" if page.metric == "accuracy" else page.metric,
        unit=page.metric,
        says="Each evaluation, and its 95 % interval as a band. Bands that overlap do not say that runs are equal: "
        "where the same problems were asked, the paired difference is far narrower.",
        curves=(),
    )
    plots = {measured.title: _measured(measured, page.curves, steps)}
    if any(len(run.reward[0]) for run in page.curves):
        plots[REWARD.title] = _reward(page.curves, steps)
    script, divs = components(plots)
    cards = [
        f'<div class="card"><h3>{escape(panel.title)}</h3>{divs[panel.title]}<p>{escape(panel.says)}</p></div>'
        for panel in (measured, REWARD)
        if panel.title in divs
    ]
    return Template((files("tether.report") / "comparison.html").read_text(encoding="utf-8")).substitute(
        title=escape(page.title),
        subtitle=escape(page.subtitle),
        style=style(),
        figures="\n".join(cards),
        tables="".join(_section(heading, table) for heading, table in page.tables),
        notes="".join(f"<li>{escape(note)}</li>" for note in page.notes),
        bokeh="\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
        script=script,
    )


def _measured(panel: Panel, curves: Sequence[RunCurves], steps: DataRange1d) -> figure:
    plot = frame(panel, x_range=steps, x_axis_label="step")
    items = []
    for run in curves:
        known = np.isfinite(run.low) & np.isfinite(run.high)
        drawn = []
        if known.any():
            drawn.append(
                plot.varea(run.steps[known], run.low[known], run.high[known], fill_color=run.colour, fill_alpha=0.1)
            )
        drawn += _line(plot, run, (run.steps, run.values), width=2.0)
        if len(run.steps) <= FEW_POINTS:
            drawn.append(plot.scatter(run.steps, run.values, color=run.colour, marker=run.pen[1], size=7))
        items.append(LegendItem(label=run.label, renderers=drawn[::-1]))
    plot.add_layout(legend(items), "above")
    return plot


def _reward(curves: Sequence[RunCurves], steps: DataRange1d) -> figure:
    plot = frame(REWARD, x_range=steps, x_axis_label="step")
    items = []
    for run in curves:
        if not len(run.reward[0]):
            continue
        pale = plot.line(*thin(run.reward), color=run.colour, line_width=1.0, line_alpha=0.22)
        window = max(5, len(run.reward[0]) // NUM_WINDOWS)
        items.append(
            LegendItem(label=run.label, renderers=[*_line(plot, run, running_mean(run.reward, window), 2.0), pale])
        )
    plot.add_layout(legend(items), "above")
    return plot


def _line(plot: figure, run: RunCurves, series: Series, width: float) -> list[object]:
    """The line of a run, and a box with its name and value where the mouse is."""
    data = {"x": series[0].astype(np.int32), "y": series[1]}
    line = plot.line("x", "y", source=data, color=run.colour, line_dash=run.pen[0], line_width=width)
    tips, formatters = [("", run.label), ("step", "@x"), ("value", "@y{%0.4g}")], {"@y": "printf"}
    plot.add_tools(HoverTool(renderers=[line], tooltips=tips, formatters=formatters, mode="mouse", visible=False))
    return [line]


def _section(heading: str, table: Sequence[Sequence[str]]) -> str:
    head, *rows = table
    lines = _row("th", head) + "".join(_row("td", row) for row in rows)
    return f'<h2>{escape(heading)}</h2><section class="card"><div class="wide"><table>{lines}</table></div></section>'


def _row(kind: Literal["th", "td"], cells: Sequence[str]) -> str:
    first, *values = cells
    numbers = "".join(f'<{kind} class="num">{escape(value)}</{kind}>' for value in values)
    return f'<tr><{kind} class="whole">{escape(first)}</{kind}>{numbers}</tr>'
