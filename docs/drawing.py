"""The pictures of ``docs/choosing.md``, as SVG: the same bytes each time, with text that stays text."""

from __future__ import annotations

import io
import math
import re
from typing import Any, Final

import torch
from curves import EPSILON, NEIGHBORHOOD, OPTIONS, kernels_shown, lines_of, reach, samples_of
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from tether.core.surrogate import effective_radius
from tether.registry import KERNELS

COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
"""Okabe and Ito's, which colour-blind readers tell apart."""
WIDTHS: Final = (3.4, 2.5, 1.7, 1.0, 1.0)
"""The first line is the widest, so that it shows under one that covers it."""
STYLE: Final = {
    "svg.hashsalt": "tether",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
}
GREY: Final = "#767676"


def rule_picture(name: str) -> str:
    """Gradient weight against the ratio, for both signs of the advantage."""
    lines, is_alone = lines_of(name), not lines_of(name)[0].label
    with rc_context(STYLE):
        figure = Figure(figsize=(4.8, 2.35), layout="constrained")
        panels = dict(zip((1, -1), figure.subplots(1, 2), strict=True))
        for sign, axes in panels.items():
            _frame(axes, sign, reach(name))
            for line, color, width in zip([x for x in lines if x.sign == sign], COLORS, WIDTHS, strict=False):
                axes.plot(line.ratio, line.weight, color=color, linewidth=2.0 if is_alone else width, label=line.label)
        if not is_alone:
            handles, labels = panels[1].get_legend_handles_labels()
            figure.legend(handles, labels, loc="upper right", ncols=4, handlelength=1.0, columnspacing=1.0)
        options = ", ".join(f"{key} = {value}" for key, value in OPTIONS.get(name, {}).items())
        title = f"{name}, {options}" if options else name
        figure.suptitle(title, x=0.02, ha="left", fontweight="bold", fontsize=9)
        return _svg(figure, name, samples_of(name))


def kernels_picture() -> str:
    """SAT's contraction by distance, and the radius that it amounts to by q."""
    u = torch.linspace(0.0, 4.0, 401, dtype=torch.float64)
    scales = torch.logspace(-3, 0, 121, dtype=torch.float64).tolist()
    with rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.axvspan(0.0, 1.0, color="#eeeeee", linewidth=0)
        left.annotate("not gated", (0.5, 0.04), ha="center", color=GREY, fontsize=7)
        for index, (name, cls) in enumerate(KERNELS.items()):
            look: dict[str, Any] = {"color": COLORS[index], "linewidth": 1.4, "label": name}
            left.plot(u, cls()(u.clone(), torch.tensor(1.0, dtype=torch.float64)), **look)
            right.plot(scales, [effective_radius(q, (EPSILON, EPSILON), cls())[1] for q in scales], **look)
        left.set(xlabel="u / q: distance in units of the scale", ylabel="psi: share of the radius", ylim=(0, 1.05))
        left.set_xlim(0, 4)
        left.legend(loc="upper right")
        right.axhline(EPSILON, color=GREY, linewidth=0.7, linestyle=":")
        right.annotate("PPO", (0.0011, EPSILON), color=GREY, fontsize=7, va="bottom")
        right.set(xscale="log", xlabel="q", ylabel="effective radius above 1", ylim=(0, 0.23), xlim=(1e-3, 1.0))
        _plain(right.xaxis)
        return _svg(figure, "kernels", kernels_shown())


def _frame(axes: Axes, sign: int, reached: tuple[float, float]) -> None:
    """The axes, the side of the pull-back, and the dotted line that no rule at all would give."""
    (least, most), near = reached, reached == NEIGHBORHOOD
    back = (least, 1.0) if sign > 0 else (1.0, most)
    axes.axvspan(*back, color="#eeeeee", linewidth=0)
    axes.axhline(0.0, color=GREY, linewidth=0.6)
    ratios = torch.logspace(math.log10(least), math.log10(most), 101).tolist()
    axes.plot(ratios, [sign * r for r in ratios], color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_yscale("linear" if near else "symlog", **({} if near else {"linthresh": 1.0, "linscale": 0.8}))
    low, high = (-0.3, 1.7) if near else (-3.0, 30.0)
    axes.set(xlim=(least, most), ylim=(low, high) if sign > 0 else (-high, -low))
    axes.set(xlabel="ratio r", title=f"A {'>' if sign > 0 else '<'} 0")
    axes.set_xticks([0.8, 1.0, 1.2] if near else [0.1, 1.0, 10.0])
    axes.set_yticks([sign * y for y in ((0, 0.5, 1, 1.5) if near else (-1, 0, 1, 10))])
    corner = (
        {"xy": (0.02, 0.02), "ha": "left", "va": "bottom"}
        if sign > 0
        else {"xy": (0.98, 0.98), "ha": "right", "va": "top"}
    )
    axes.annotate("moving back", xycoords="axes fraction", color=GREY, fontsize=7, **corner)
    if sign > 0:
        axes.set_ylabel("gradient / |A|")
    _plain(axes.xaxis)
    _plain(axes.yaxis)


def _plain(axis: Any) -> None:
    """Ticks as ``0.1 1 10``."""
    axis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}".replace("-", "\N{MINUS SIGN}")))
    axis.set_minor_formatter(NullFormatter())


def _svg(figure: Figure, title: str, description: str) -> str:
    """Without a date, coordinates to a hundredth of a point."""
    out = io.StringIO()
    metadata = {"Date": None, "Creator": None, "Title": title, "Description": description}
    figure.savefig(out, format="svg", facecolor="white", metadata=metadata)
    coordinates = re.compile(r'\bd="[^"]*"')
    text = coordinates.sub(lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), out.getvalue())
    return re.sub(r" +$", "", text, flags=re.MULTILINE)
