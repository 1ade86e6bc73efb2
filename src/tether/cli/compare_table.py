"""A comparison in words and columns: the same for the console, the page and the JSON file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from tether.evals.comparison import PLACES, SEED, Comparison, Difference
from tether.evals.estimators import Interval, trailing
from tether.evals.outcome import Measured, Outcome
from tether.journal.merging import merge
from tether.report.comparison import ComparisonPage, RunCurves

Table = list[tuple[str, ...]]
NOTHING: Final = "-"
LONGEST: Final = 28
"""Characters of a value of a setting."""

NUMBERS: Final[tuple[tuple[str, str, Literal["tail", "run"], str], ...]] = (
    ("reward, last quarter", "reward/mean", "tail", ".4f"),
    ("length, last quarter, tokens", "rollout/length_mean", "tail", ".1f"),
    ("truncated, last quarter", "rollout/truncated_fraction", "tail", ".2%"),
    ("staleness, mean", "staleness/mean", "run", ".2f"),
    ("staleness, max", "staleness/max", "run", ".0f"),
    ("mismatch, mean |d|", "mismatch/abs_mean", "run", ".4f"),
    ("tokens clipped", "clip/fraction", "run", ".2%"),
    ("tokens behind SAT's gate", "sat/gate_fraction", "run", ".2%"),
    ("tokens/s", "throughput/tokens_per_s", "run", ",.0f"),
    ("seconds", "throughput/wall_s", "run", ",.0f"),
)
"""Name, metric, over what, and how it is written; over the whole run by the metric's own merge."""


def number_of(outcome: Outcome, metric: str, over: Literal["tail", "run"]) -> float | None:
    """A number of the steps of a run; ``None`` for a file, and where it was not measured."""
    if outcome.view is None:
        return None
    values = outcome.view.series(metric)[1]
    if not len(values):
        return None
    if over == "tail":
        return trailing(values.tolist())
    merged = merge({metric: event.metrics[metric]} for event in outcome.view.steps if metric in event.metrics)
    value = merged[metric].value
    return None if isinstance(value, Mapping) else float(value)


def runs_table(comparison: Comparison) -> Table:
    """Head and rows: a name, and its value for each run."""
    outcomes, differences = comparison.outcomes, comparison.differences

    def row(name: str, cells: Sequence[str]) -> tuple[str, ...]:
        return (name, *cells)

    metric, place = comparison.metric, comparison.place
    table = [
        row("", [outcome.label for outcome in outcomes]),
        row("state", [outcome.state for outcome in outcomes]),
        row("evaluations", [str(len(outcome.evaluations)) for outcome in outcomes]),
        row("problems x samples", [_asked(outcome) for outcome in outcomes]),
        *(row(f"{metric}, {_title(at)}", [_at_step(o.at(at), at) for o in outcomes]) for at in PLACES),
        row(f"difference to first ({place})", [_gain(d) for d in differences]),
        row("p", [NOTHING if d is None else _p(d.p) for d in differences]),
    ]
    if len(outcomes) > 2:
        table.append(row("p, adjusted (Holm)", [NOTHING if d is None else _p(d.adjusted_p) for d in differences]))
    table.append(row("rests on", [NOTHING if d is None else d.how for d in differences]))
    for name, metric_name, over, form in NUMBERS:
        values = [number_of(outcome, metric_name, over) for outcome in outcomes]
        if any(value is not None for value in values):
            table.append(row(name, [NOTHING if value is None else format(value, form) for value in values]))
    return table


def settings_table(comparison: Comparison) -> Table:
    """The keys of the recipes that differ; only the head if none does."""
    head = ("", *(outcome.label for outcome in comparison.outcomes))
    return [head, *((key, *map(_short, values)) for key, values in comparison.settings.items())]


def groups_table(comparison: Comparison) -> Table:
    """Head and rows: a name, and its value for each setting, over its seeds."""
    groups, metric = comparison.groups, comparison.metric
    differences = [group.difference for group in groups]
    rows: Table = [
        ("", *(group.label for group in groups)),
        ("seeds", *(f"{' '.join(group.seeds)} (n = {len(group.members)})" for group in groups)),
        *((f"mean {metric}, {_title(at)}", *(written(group.means[at]) for group in groups)) for at in PLACES),
    ]
    if any(differences):
        rows.append((f"difference to first ({comparison.place})", *map(_gain, differences)))
        rows.append(("p", *(NOTHING if d is None else _p(d.p) for d in differences)))
        rows.append(("p, adjusted (Holm)", *(NOTHING if d is None else _p(d.adjusted_p) for d in differences)))
    return rows


def page_of(comparison: Comparison) -> ComparisonPage:
    """Everything for the page."""
    tables = [("Side by side", runs_table(comparison))]
    if comparison.groups:
        tables.append(("Over seeds", groups_table(comparison)))
    if comparison.settings:
        tables.append(("What differs in the recipes", settings_table(comparison)))
    return ComparisonPage(
        title=f"{len(comparison.outcomes)} runs compared",
        subtitle=", ".join(outcome.label for outcome in comparison.outcomes),
        metric=comparison.metric,
        tables=tables,
        notes=comparison.notes,
        curves=[_curves(comparison, at) for at in range(len(comparison.outcomes))],
    )


def _curves(comparison: Comparison, at: int) -> RunCurves:
    outcome = comparison.outcomes[at]
    groups = [group.members for group in comparison.groups] or [(i,) for i in range(len(comparison.outcomes))]
    setting = next(place for place, members in enumerate(groups) if at in members)
    points = outcome.evaluations
    none = np.array([], np.int64), np.array([], np.float64)
    return RunCurves(
        label=outcome.label,
        setting=setting,
        seed=groups[setting].index(at),
        steps=np.array([point.step for point in points], np.int64),
        values=np.array([point.value.value for point in points], np.float64),
        low=np.array([point.value.low for point in points], np.float64),
        high=np.array([point.value.high for point in points], np.float64),
        reward=none if outcome.view is None else outcome.view.series("reward/mean"),
    )


def numbers_of(comparison: Comparison) -> dict[str, Any]:
    """Everything for the JSON file; an unknown end of an interval is ``null``."""
    return {
        "metric": comparison.metric,
        "difference_of": comparison.place,
        "runs": [
            {
                "label": outcome.label,
                "state": outcome.state,
                "protocol": dict(outcome.protocol),
                **{at: _measured(outcome.at(at)) for at in PLACES},
                "evaluations": [_measured(point) for point in outcome.evaluations],
                "difference": _difference(difference),
                "numbers": {name: number_of(outcome, name, over) for _, name, over, _ in NUMBERS},
            }
            for outcome, difference in zip(comparison.outcomes, comparison.differences, strict=True)
        ],
        "groups": [
            {
                "label": group.label,
                "runs": [comparison.outcomes[at].label for at in group.members],
                SEED: list(group.seeds),
                **{at: _ends(group.means[at]) for at in PLACES},
                "difference": _difference(group.difference),
            }
            for group in comparison.groups
        ],
        "settings": {key: list(values) for key, values in comparison.settings.items()},
        "notes": list(comparison.notes),
    }


def _measured(measured: Measured) -> dict[str, Any]:
    return {"step": measured.step, "problems": len(measured.scores) or None, **_ends(measured.value)}


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    tests = {"p": difference.p, "p_holm": difference.adjusted_p, "how": difference.how}
    return {**_ends(difference.value), **tests}


def _ends(interval: Interval) -> dict[str, float | None]:
    return {name: x if math.isfinite(x) else None for name, x in interval._asdict().items()}


def written(interval: Interval, sign: str = "") -> str:
    """A value with its interval, if that is known.

    >>> written(Interval(0.5, 0.45, 0.5625)), written(Interval(0.02, -0.01, 0.05), "+")
    ('0.500 [0.450, 0.562]', '+0.020 [-0.010, +0.050]')
    >>> written(Interval(-0.0001, -math.inf, math.inf))
    '0.000'
    """
    value, low, high = (format(round(x, 3) + 0.0, f"{sign}.3f") for x in interval)  # + 0.0: no -0.000
    return f"{value} [{low}, {high}]" if all(map(math.isfinite, interval)) else value


def _asked(outcome: Outcome) -> str:
    problems, k = len(outcome.last.scores), outcome.protocol.get("k")
    return f"{problems or outcome.config.get('eval', {}).get('prompts', '?')} x {k or '?'}"


def _title(place: str) -> str:
    return {"best": "best (optimistic)", "trailing": "trailing 25 %"}.get(place, place)


def _at_step(measured: Measured, place: str) -> str:
    return f"{written(measured.value)}{f' @{measured.step}' if place != 'trailing' else ''}"


def _gain(difference: Difference | None) -> str:
    return NOTHING if difference is None else written(difference.value, "+")


def _p(p: float) -> str:
    return f"{p:.4f}" if p >= 0.00005 else "< 0.0001"


def _short(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 3]}..."
