"""The curves of a report, drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import cycle
from typing import Any, Final

import numpy as np
from bokeh.models import (
    DataRange1d,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    NumeralTickFormatter,
    PrintfTickFormatter,
)
from bokeh.plotting import figure
from numpy.typing import NDArray

from tether.journal import RunView
from tether.journal.reader import Series
from tether.journal.schema import label_order
from tether.report.panels import GREY, SEVERAL, Curve, Panel

LEGEND_ROOM: Final = 81
"""Letters beside each other above a figure that is half a page wide, of which a line's sample takes six."""

MOST_POINTS: Final = 2000
"""A longer curve is thinned to the lowest and the highest point of each of half as many stretches."""


LOG_TICKS: Final = tuple(float(f"{digit}e{power}") for power in range(-12, 7) for digit in (1, 2, 5))
"""Labels of a log axis: the usual ticker crowds less than a decade and leaves more than one bare."""
MOST_DECADES: Final = 4
"""An axis that spans more has a label at each power of ten only."""

FEW_POINTS: Final = 60
"""A curve this short has a dot at each point; a longer one is pale, under its running mean."""
NUM_WINDOWS: Final = 25
"""The running mean of a long curve is over one in so many of its points."""


def draw(panel: Panel, run: RunView, steps: DataRange1d) -> figure | None:
    """The figure of a panel, or ``None`` if the run measured nothing of it; curves share their range of steps."""
    return _histogram(panel, run) if panel.kind == "histogram" else _curves(panel, run, steps)


def _curves(panel: Panel, run: RunView, steps: DataRange1d) -> figure | None:
    drawn = [line for curve in panel.curves for line in lines_of(curve, run)]
    if not drawn:
        return None
    is_log = panel.scale == "log" and all((series[1] > 0).all() for _, series in drawn)
    plot = frame(panel, x_range=steps, y_axis_type="log" if is_log else "linear", x_axis_label="step")
    if is_log:
        _log_axis(plot, [series[1] for _, series in drawn])
    items, lines = [], []
    for curve, series in drawn:
        if curve.band:
            _band(plot, curve, run)
        x, y = thin(series)
        data = {"x": x.astype(np.int32), "y": y}
        is_long = panel.is_noisy and len(x) > FEW_POINTS
        pen = {"line_width": 1.0, "line_alpha": 0.3} if is_long else {"line_width": 1.6, "line_dash": curve.dash}
        line = plot.line("x", "y", source=data, color=curve.colour, **pen)
        drawings = [line, *([_mean(plot, curve, series)] if is_long else [])]
        if len(x) <= FEW_POINTS and curve.dash == "solid":
            drawings.append(plot.scatter("x", "y", source=data, color=curve.colour, size=5))
        items.append(LegendItem(label=curve.label, renderers=drawings[::-1]))
        lines.append((curve.label, line))
    _hovers(plot, lines)
    if panel.level and (level := _number_at(panel.level[1], run)) > (0 if is_log else -np.inf):
        x = np.concatenate([series[0] for _, series in drawn])
        ends = [int(x.min()), int(x.max())]
        line = plot.line(ends, [level, level], color=GREY, line_width=1.4, line_dash="dotted")
        items.append(LegendItem(label=f"{panel.level[0]} {level:g}", renderers=[line]))
    if len(items) > 1:
        plot.add_layout(legend(items), "above")
    return plot


def _mean(plot: figure, curve: Curve, series: Series) -> Any:
    """The running mean of a long curve, with every step in it."""
    x, y = running_mean(series, len(series[0]) // NUM_WINDOWS)
    data = {"x": x.astype(np.int32), "y": y}
    return plot.line("x", "y", source=data, color=curve.colour, line_width=2.0, line_dash=curve.dash)


def running_mean(series: Series, window: int, most: int = MOST_POINTS) -> Series:
    """Mean of each value and its neighbours, ``window // 2`` on each side, fewer at the ends; at some steps of many.

    >>> _, means = running_mean((np.arange(4), np.array([0.0, 3.0, 0.0, 0.0])), window=2)
    >>> means.tolist()
    [1.5, 1.0, 1.0, 0.0]
    """
    steps, values = series
    at = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), most)).round().astype(int))
    half = window // 2
    return steps[at], np.array([values[max(0, i - half) : i + half + 1].mean() for i in at])


def _log_axis(plot: figure, values: Sequence[NDArray[np.float64]]) -> None:
    """Labels that are neither crowded nor missing, whatever the axis spans."""
    all_of_them = np.concatenate(values)
    is_wide = np.log10(all_of_them.max()) - np.log10(all_of_them.min()) > MOST_DECADES
    plot.yaxis.ticker = FixedTicker(ticks=list(LOG_TICKS[:: 3 if is_wide else 1]), minor_ticks=[])
    plot.yaxis.formatter = PrintfTickFormatter(format="%g")
    plot.ygrid.ticker = plot.yaxis.ticker


def _number_at(place: str, run: RunView) -> float:
    """A number of the resolved recipe; ``-inf`` if it has none there."""
    value: Any = run.config
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else -np.inf


def _hovers(plot: figure, lines: Sequence[tuple[str, Any]]) -> None:
    """One box with every value where the curves have the same steps, else a box a curve."""
    first = lines[0][1].data_source
    if all(np.array_equal(line.data_source.data["x"], first.data["x"]) for _, line in lines):
        for place, (_, line) in enumerate(lines):
            first.data[f"y{place}"] = line.data_source.data["y"]
        boxes = [(lines[0][1], [(label, f"@y{place}") for place, (label, _) in enumerate(lines)])]
    else:
        boxes = [(line, [(label, "@y")]) for label, line in lines]
    for line, values in boxes:
        tooltips = [("step", "@x"), *((label, f"{column}{{%0.4g}}") for label, column in values)]
        plot.add_tools(_hover(line, tooltips, {column: "printf" for _, column in values}))


def _histogram(panel: Panel, run: RunView) -> figure | None:
    (curve,) = panel.curves
    counts = run.histogram(curve.metric)
    if not counts:
        return None
    labels = list(counts)
    plot = frame(panel, x_range=labels, x_axis_label="staleness, optimizer updates")
    data = {"x": labels, "y": list(counts.values())}
    bars = plot.vbar("x", top="y", width=0.82, source=data, color=curve.colour, alpha=0.85)
    plot.add_tools(_hover(bars, [(curve.label, "@y{0,0}"), ("staleness", "@x")], {}))
    plot.y_range.start = 0
    plot.yaxis.formatter = NumeralTickFormatter(format="0,0")
    plot.xgrid.visible = False
    if len(labels) > 24:
        plot.xaxis.major_label_orientation = "vertical"
    return plot


def _band(plot: figure, curve: Curve, run: RunView) -> None:
    low, high = (run.series(name, curve.event) for name in curve.band or ("", ""))
    if len(low[0]) and np.array_equal(low[0], high[0]):
        plot.varea(low[0], low[1], high[1], fill_color=curve.colour, fill_alpha=0.18)


def lines_of(curve: Curve, run: RunView) -> list[tuple[Curve, Series]]:
    """What a curve stands for in this run: none where nothing was measured, several where each match is one."""
    fitting = [name for name in run.names(curve.event) if fnmatchcase(name, curve.metric)]
    if curve.matches == "sum":
        found = [(curve, _sum_of(fitting, curve.event, run))] if fitting else []
    elif curve.matches == "shares":
        shares = {
            f"{_star(name, curve)} {label}": of for name in fitting for label, of in _shares(name, curve.event, run)
        }
        found = _in_turn(curve, shares)
    elif curve.matches == "each":
        ordered = sorted(fitting, key=lambda name: label_order(_star(name, curve)))
        found = _in_turn(curve, {_star(name, curve): run.series(name, curve.event) for name in ordered})
    else:
        found = [(_named(curve, name), run.series(name, curve.event)) for name in fitting]
    shown = [(own, series) for own, found_series in found if len((series := _without_zeros(found_series, own))[0])]
    return shown[:1] if curve.matches == "first" else shown


def _in_turn(curve: Curve, series: Mapping[str, Series]) -> list[tuple[Curve, Series]]:
    """A curve of each, by what stands in its label, in a colour of its own."""
    return [
        (replace(curve, label=curve.label.format(name), colour=colour), of)
        for (name, of), colour in zip(series.items(), cycle(SEVERAL), strict=False)
    ]


def _shares(name: str, kind: str, run: RunView) -> list[tuple[str, Series]]:
    """What share each label of a histogram had at every event, the most frequent label first."""
    points = [(event.step, event.metrics[name].value) for event in run.of(kind) if name in event.metrics]
    counts = [(step, value) for step, value in points if isinstance(value, Mapping) and sum(value.values()) > 0]
    steps, total = np.array([step for step, _ in counts], np.int64), run.histogram(name, kind)
    return [
        (label, (steps, np.array([value.get(label, 0.0) / sum(value.values()) for _, value in counts], np.float64)))
        for label in sorted(total, key=lambda label: -total[label])
    ]


def _named(curve: Curve, name: str) -> Curve:
    """With the metric's own name in its label and its band."""
    low, high = curve.band or ("", "")
    band = (low.format(name), high.format(name)) if curve.band else None
    return replace(curve, label=curve.label.format(name.rpartition("/")[2]), band=band)


def _star(name: str, curve: Curve) -> str:
    """What the ``*`` of a curve's pattern stands for in a name that fits."""
    before, _, after = curve.metric.partition("*")
    return name.removeprefix(before).removesuffix(after)


def _sum_of(names: Sequence[str], kind: str, run: RunView) -> Series:
    """The sum of some numbers at every event that has them all."""
    sums: dict[int, float] = {}
    for event in run.of(kind):
        values = [event.metrics[name].value for name in names if name in event.metrics]
        numbers = [value for value in values if not isinstance(value, Mapping)]
        if len(numbers) == len(names):
            sums[event.step] = sum(numbers)
    return np.array(list(sums), np.int64), np.array(list(sums.values()), np.float64)


def _without_zeros(series: Series, curve: Curve) -> Series:
    """What is left of a series by the curve's rule for zeros."""
    steps, values = series
    if curve.zeros == "shown" or (curve.zeros == "shown-if-others" and values.any()):
        return series
    return steps[values != 0], values[values != 0]


def thin(series: Series, most: int = MOST_POINTS) -> Series:
    """A series that is short enough to draw: of each stretch its lowest and its highest point, so no spike is lost.

    >>> steps, values = thin((np.arange(9), np.array([0.0, 9, 0, 1, 1, 1, -5, 2, 2])), most=6)
    >>> steps.tolist(), values.tolist()
    ([0, 1, 3, 6, 7], [0.0, 9.0, 1.0, -5.0, 2.0])
    """
    steps, values = series
    if len(steps) <= most:
        return series
    stretches = np.array_split(np.arange(len(steps)), max(most // 2, 1))
    kept = sorted({int(s[pick(values[s])]) for s in stretches for pick in (np.argmin, np.argmax)})
    return steps[kept], values[kept]


def frame(panel: Panel, **options: Any) -> figure:
    """An empty figure in the style of all others; ``options`` are bokeh's."""
    plot = figure(
        height=260,
        sizing_mode="stretch_width",
        tools="xpan,xbox_zoom,reset,save",
        active_drag="xbox_zoom",
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_color=None,
        min_border_right=12,
        y_axis_label=panel.unit,
        **options,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    plot.grid.grid_line_color = GREY
    plot.grid.grid_line_alpha = 0.22
    for axis in plot.axis:
        axis.axis_line_color = GREY
        axis.axis_line_alpha = 0.5
        axis.major_tick_line_color = None
        axis.minor_tick_line_color = None
        axis.major_label_text_color = GREY
        axis.axis_label_text_color = GREY
        axis.major_label_text_font = axis.axis_label_text_font = "system-ui, sans-serif"
        axis.major_label_text_font_size = "11px"
        axis.axis_label_text_font_size = "12px"
        axis.axis_label_text_font_style = "normal"
    return plot


def legend(items: Sequence[LegendItem]) -> Legend:
    """A legend above a figure, in the same style."""
    return Legend(
        items=list(items),
        orientation="horizontal",
        ncols=max(1, min(len(items), LEGEND_ROOM // (6 + max(len(item.label.value) for item in items)))),
        click_policy="mute",
        label_text_color=GREY,
        label_text_font="system-ui, sans-serif",
        label_text_font_size="12px",
        background_fill_alpha=0,
        border_line_color=None,
        padding=0,
        margin=4,
        spacing=14,
    )


def _hover(renderer: Any, tooltips: list[tuple[str, str]], formatters: dict[str, str]) -> HoverTool:
    return HoverTool(renderers=[renderer], tooltips=tooltips, formatters=formatters, mode="vline", visible=False)
