"""The curves of a report: which metrics stand together, how they are drawn, and what healthy looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal

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

BLUE: Final = "#3d85c6"
"""What a panel is about."""
ORANGE: Final = "#e08a1e"
"""Its upper end: the worst token, the outer radius."""
GREEN: Final = "#2e9e86"
"""What the run is for: accuracy on prompts that it does not train on."""
GREY: Final = "#8a919c"
"""What to compare with: a bound, a threshold. All four are readable on a light and on a dark page."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a figure."""

    metric: str
    """A name, or a pattern (``throughput/*``) of which the first match is drawn."""
    label: str
    colour: str
    event: str = "step"
    band: tuple[str, str] | None = None
    """Metrics of the lower and the upper end of its interval, drawn if both were measured."""
    dash: Literal["solid", "dashed"] = "solid"
    """``dashed`` for a curve that may lie exactly on another one; it has no dots, so that the other shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One figure with its sentence."""

    title: str
    unit: str
    says: str
    """What it shows and what healthy looks like, in a sentence or two."""
    curves: tuple[Curve, ...]
    scale: Literal["linear", "log"] = "linear"
    """``log`` is kept only where every value drawn is above 0."""
    level: tuple[str, str] | None = None
    """A number of the resolved recipe to compare with, drawn as a dotted line: its label and its dotted place."""
    kind: Literal["curves", "histogram"] = "curves"
    is_noisy: bool = True
    """Whether a long run's curves need a running mean to be read."""


PANELS: Final = (
    Panel(
        title="Reward",
        unit="mean reward",
        says="Mean reward of the rollouts that each step trained on. Healthy: it climbs through the noise and "
        "levels off; a fall that does not recover is a collapse.",
        curves=(Curve(metric="reward/mean", label="reward", colour=BLUE),),
    ),
    Panel(
        title="Held-out accuracy",
        unit="accuracy",
        says="Share of held-out prompts answered correctly, with its interval. Healthy: it follows the reward; "
        "reward that rises alone is being gamed.",
        curves=(
            Curve(
                metric="eval/accuracy",
                label="accuracy",
                colour=GREEN,
                event="eval",
                band=("eval/accuracy_low", "eval/accuracy_high"),
            ),
        ),
    ),
    Panel(
        title="Staleness",
        unit="optimizer updates",
        says="Updates made between a token's weights and its use. Healthy: the maximum never passes the bound; "
        "a drift upwards means that generation falls behind.",
        level=("bound", "derived.staleness_bound"),
        is_noisy=False,
        curves=(
            Curve(metric="staleness/max", label="max", colour=ORANGE),
            Curve(metric="staleness/mean", label="mean", colour=BLUE, dash="dashed"),
        ),
    ),
    Panel(
        title="Staleness of all trained tokens",
        unit="tokens",
        says="How many tokens were trained at each staleness, over the whole run. Healthy: the spread that the "
        "configured lag implies, and nothing beyond it.",
        curves=(Curve(metric="staleness/histogram", label="tokens", colour=BLUE),),
        kind="histogram",
    ),
    Panel(
        title="Mismatch",
        unit="|d|, nats",
        says="Distance between the policy being trained and the one that sampled: |d|, with d = logp - logp_behavior. "
        "Healthy: flat or slowly moving; growth without end is how stale runs die.",
        curves=(
            Curve(metric="mismatch/abs_mean", label="mean |d|", colour=BLUE),
            Curve(metric="mismatch/p99", label="99th percentile", colour=ORANGE),
        ),
        scale="log",
    ),
    Panel(
        title="Self-check",
        unit="|d|, nats",
        says="After each publication: how far the engine's numbers lie from those of the weights it was sent, what "
        "would have stopped the run, and how far they lie from the version before. Healthy: below both.",
        curves=(
            Curve(metric="probe/distance", label="to what was sent", colour=BLUE, event="check"),
            Curve(metric="probe/allowed", label="allowed", colour=GREY, event="check"),
            Curve(metric="probe/abs_d_previous", label="to the version before", colour=ORANGE, event="check"),
        ),
        scale="log",
        is_noisy=False,
    ),
    Panel(
        title="SAT's trust region",
        unit="log-ratio, radius",
        says="q, above which a token's radius contracts, and the PPO radius below and above 1 that gives the same "
        "gradient. Healthy: both sit below PPO's own and tighten when q is small.",
        curves=(
            Curve(metric="sat/q", label="q", colour=GREY),
            Curve(metric="sat/effective_radius_low", label="below 1", colour=BLUE),
            Curve(metric="sat/effective_radius_high", label="above 1", colour=ORANGE, dash="dashed"),
        ),
        scale="log",
        level=("PPO", "algorithm.rule.epsilon_low"),
    ),
    Panel(
        title="Tokens held back",
        unit="share of tokens",
        says="Share gated by SAT, share that only SAT cuts, and share with no gradient in all. Healthy: a few "
        "per cent; near 0 the rule does nothing, and a large share throws the data away.",
        curves=(
            Curve(metric="clip/fraction", label="clipped in all", colour=BLUE),
            Curve(metric="sat/gate_fraction", label="gated", colour=GREY),
            Curve(metric="sat/newly_cut_fraction", label="newly cut by SAT", colour=ORANGE, dash="dashed"),
        ),
    ),
    Panel(
        title="Entropy",
        unit="nats a token",
        says="How undecided the policy is. Healthy: it sinks slowly as the policy learns; a plunge towards 0 "
        "ends exploration, and a rise means that the policy is coming apart.",
        curves=(Curve(metric="policy/entropy", label="entropy", colour=BLUE),),
    ),
    Panel(
        title="Gradient norm",
        unit="norm before clipping",
        says="Size of each step's gradient. Healthy: one order of magnitude, single spikes that pass; "
        "a lasting rise calls for a lower learning rate or a shorter lag.",
        curves=(Curve(metric="policy/grad_norm", label="gradient norm", colour=BLUE),),
        scale="log",
    ),
    Panel(
        title="Throughput",
        unit="tokens a second",
        says="Tokens of each step by the seconds since the step before. Healthy: a steady pattern; with a lag it is a "
        "comb, since generation falls on a few steps of a block. A decline means that something grows.",
        curves=(Curve(metric="throughput/*tokens*", label="tokens/s", colour=BLUE),),
    ),
)


def draw(panel: Panel, run: RunView, steps: DataRange1d) -> figure | None:
    """The figure of a panel, or ``None`` if the run measured nothing of it; curves share their range of steps."""
    return _histogram(panel, run) if panel.kind == "histogram" else _curves(panel, run, steps)


def _curves(panel: Panel, run: RunView, steps: DataRange1d) -> figure | None:
    drawn = [(curve, name, run.series(name, curve.event)) for curve in panel.curves if (name := find(curve, run))]
    if not drawn:
        return None
    is_log = panel.scale == "log" and all((series[1] > 0).all() for _, _, series in drawn)
    plot = frame(panel, x_range=steps, y_axis_type="log" if is_log else "linear", x_axis_label="step")
    if is_log:
        _log_axis(plot, [series[1] for _, _, series in drawn])
    items, lines = [], []
    for curve, name, series in drawn:
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
        label = curve.label if "*" not in curve.metric else name.rpartition("/")[2]
        items.append(LegendItem(label=label, renderers=drawings[::-1]))
        lines.append((label, line))
    _hovers(plot, lines)
    if panel.level and (level := _number_at(panel.level[1], run)) > (0 if is_log else -np.inf):
        x = np.concatenate([series[0] for _, _, series in drawn])
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


def find(curve: Curve, run: RunView) -> str | None:
    """The metric that a curve shows: the first of the run's that fits and has numbers."""
    fitting = (name for name in run.names(curve.event) if fnmatchcase(name, curve.metric))
    return next((name for name in fitting if len(run.series(name, curve.event)[0])), None)


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
