"""The pipeline's part of a report: where the time went, what lay between generation and training, what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tether.journal import RunView
from tether.journal.balance import Balance, FateSum
from tether.journal.waits import TRAINER_WAITS, Spent, where_time_went
from tether.report.panels import BLUE, GREEN, GREY, ORANGE, RED, VIOLET, Curve, Panel

PARTS: Final = {
    "working": GREEN,
    "sampling": GREEN,
    "free to ask": GREEN,
    **dict(zip(TRAINER_WAITS.values(), (ORANGE, VIOLET, BLUE), strict=True)),
    "held back by the bound": RED,
    "idle": GREY,
}
"""Colours of what somebody did or waited for; green is work."""

PIPELINE_PANELS: Final = (
    Panel(
        title="Where staleness came from",
        unit="optimizer updates",
        says="Updates made while a batch's rollouts were in flight, from the weights of their first token to their "
        "reward, and while they waited in the queue. Healthy: little in the queue; a queue that ages its data means "
        "that engines run further ahead than the trainer can use.",
        curves=(
            Curve(metric="staleness/in_flight_mean", label="in flight", colour=BLUE),
            Curve(metric="staleness/in_queue_mean", label="in the queue", colour=ORANGE),
        ),
        is_optional=True,
    ),
    Panel(
        title="Under way",
        unit="rollouts, groups",
        says="After each step: rollouts in flight, finished groups that no batch has taken, and free slots. Healthy: "
        "engines full and a short queue; no free slot for long means that the bound holds engines back.",
        curves=(
            Curve(metric="pipeline/in_flight_rollouts", label="rollouts in flight", colour=BLUE),
            Curve(metric="pipeline/queue_groups", label="groups in the queue", colour=ORANGE),
            Curve(metric="pipeline/slots_free", label="free slots", colour=GREY, dash="dashed"),
        ),
        is_optional=True,
    ),
    Panel(
        title="Versions",
        unit="versions, updates",
        says="Versions that a trained rollout spans, versions among all tokens under way or in the queue, and updates "
        "not yet published. Healthy: 1 a rollout unless weights change in flight; the debt never passes the lag.",
        curves=(
            Curve(metric="rollout/versions_mean", label="a rollout", colour=BLUE),
            Curve(metric="pipeline/versions_in_flight", label="under way", colour=ORANGE),
            Curve(metric="pipeline/publish_debt", label="updates not published", colour=GREY, dash="dashed"),
        ),
        is_optional=True,
    ),
    Panel(
        title="Waiting, step by step",
        unit="seconds of the run's clock",
        says="What was waited for, told by the step in which the wait ended. Healthy: one side waits a little, never "
        "both; a wait that grows shows where to add an engine or a slot.",
        curves=(
            Curve(metric="wait/data_s", label="trainer for data", colour=ORANGE),
            Curve(metric="wait/publication_s", label="for publications", colour=VIOLET, zeros="shown-if-others"),
            Curve(metric="wait/settle_s", label="for generation to settle", colour=BLUE, zeros="shown-if-others"),
            Curve(metric="wait/slot_s", label="feed for slots", colour=RED, dash="dashed", zeros="shown-if-others"),
        ),
        is_optional=True,
    ),
)


def pipeline_section(run: RunView, cards: str) -> str:
    """Bars of where the time went, then the panels; one sentence where a run measured nothing of it."""
    spent = where_time_went(run.steps)
    if not spent and not cards:
        return '<section class="card"><p class="soft">Nothing of it was recorded in this run.</p></section>'
    is_virtual = run.config.get("placement", {}).get("kind") == "inline"
    bars = f'<section class="card"><h3>Where the time went</h3>{_bars(spent, is_virtual)}</section>' if spent else ""
    return f'{bars}<section class="grid">{cards}</section>'


REAL = "Seconds of the run"
VIRTUAL = "Virtual seconds, which are the costs of the recipe (placement.costs) and no measurement"


def _bars(spent: Sequence[Spent], is_virtual: bool) -> str:
    rows = "".join(
        f'<tr><td class="whole">{escape(one.who)}</td><td class="wide-bar">{_bar(one)}</td><td>{_words(one)}</td></tr>'
        for one in spent
    )
    labels: dict[str, list[str]] = {}
    for part in dict.fromkeys(part for one in spent for part in one.parts if one.parts[part] > 0):
        labels.setdefault(PARTS[part], []).append(part)
    keys = "".join(
        f'<span><i class="key" style="background:{colour}"></i>{escape(", ".join(parts))}</span>'
        for colour, parts in labels.items()
    )
    return (
        f'<p class="soft">{VIRTUAL if is_virtual else REAL}, up to the last step. Healthy: one of trainer and engines '
        "hardly waits; "
        "where both wait, the bound or the publications are in the way.</p>"
        f'<table>{rows}</table><div class="keys">{keys}</div>'
    )


def _bar(spent: Spent) -> str:
    pieces = "".join(
        f'<i title="{escape(part)}" style="width:{spent.share(part):.2%};background:{PARTS[part]}"></i>'
        for part in spent.parts
    )
    return f'<div class="spent">{pieces}</div>'


def _words(spent: Spent) -> str:
    return escape(", ".join(f"{part} {spent.share(part):.0%} ({s:,.1f} s)" for part, s in spent.parts.items() if s > 0))


def fates_table(balance: Balance) -> str:
    """What became of the rollouts, and how long they were."""
    if not balance.fates:
        return '<p class="soft">No rollout came to its end in this run.</p>'
    rows = "".join(_fate_row(fate) for fate in balance.fates)
    once = (
        "all, each exactly once"
        if not balance.duplicates
        else f"lines; ids that have more than one: {len(balance.duplicates):,}"
    )
    total = f'<td class="num">{len(balance.lines):,}</td>'
    numbers = "".join(f'<th class="num">{name}</th>' for name in ("rollouts", "mean", "p50", "p90", "to trained"))
    head = f"<tr><th>fate</th>{numbers}</tr>"
    rest = f'<tr><td class="soft">{once}</td>{total}<td></td><td></td><td></td><td></td></tr>'
    bias = f"In the mean, {balance.bias}. " if balance.bias is not None else ""
    return (
        f'<table>{head}{rows}{rest}</table><p class="soft">{escape(bias)}Lengths in completion tokens; dropping by '
        "age or deadline shows here, as it takes the long ones.</p>"
    )


def _fate_row(fate: FateSum) -> str:
    lengths = fate.lengths
    cells = [f"{fate.rollouts:,}"]
    cells += ["-"] * 3 if lengths is None else [f"{lengths.mean:.1f}", f"{lengths.p50:.0f}", f"{lengths.p90:.0f}"]
    cells.append("-" if fate.to_trained is None else f"{fate.to_trained:.2f}")
    numbers = "".join(f'<td class="num">{cell}</td>' for cell in cells)
    return f"<tr><td>{escape(fate.fate)}</td>{numbers}</tr>"
