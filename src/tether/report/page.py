"""One run as one HTML file: no network, no torch; opens from a disk on any laptop."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from bokeh.embed import components
from bokeh.models import DataRange1d
from bokeh.resources import Resources

from tether.journal import RunView, Sample
from tether.journal.balance import Balance
from tether.journal.best import best_last_trailing
from tether.journal.schema import EVENTS_FILE, REPORT_FILE
from tether.journal.writer import write_whole
from tether.records import Metrics
from tether.report.curriculum import CURRICULUM_PANELS
from tether.report.figures import FEW_POINTS, NUM_WINDOWS, draw
from tether.report.panels import PANELS, Panel
from tether.report.pipeline import PIPELINE_PANELS, fates_table, pipeline_section

SETTINGS: Final = (
    ("algorithm", ("derived.algorithm", "algorithm.preset")),
    ("rule", ("algorithm.rule.name", "algorithm.rule")),
    ("scope (measure)", ("algorithm.measure",)),
    ("ratio level", ("algorithm.level",)),
    ("denominator", ("algorithm.proximal.name",)),
    ("corrections", ("algorithm.corrections",)),
    ("replay", ("algorithm.replay",)),
    ("step size", ("algorithm.step_size.name",)),
    ("KL", ("algorithm.kl.name",)),
    ("model", ("model.path", "model")),
    ("task", ("task.name", "task")),
    ("engine", ("engine.kind", "engine")),
    ("regime", ("pipeline.regime",)),
    ("lag", ("pipeline.lag",)),
    ("staleness bound", ("derived.staleness_bound", "pipeline.max_staleness")),
    ("steps", ("run.steps",)),
    ("learning rate", ("trainer.lr",)),
    ("seed", ("run.seed",)),
)
"""Label in the header, and the places in the resolved recipe where its value may stand."""

NUM_SAMPLES: Final = 4
"""Stored samples shown from the beginning, and as many from the end."""


def write_report(run_folder: Path | str, out: Path | str | None = None) -> Path:
    """Write the report of a run and return its path: ``report.html`` in the run directory unless said otherwise."""
    run = RunView(run_folder)
    path = Path(out) if out is not None else run.folder / REPORT_FILE
    write_whole(path, render(run).encode("utf-8", "backslashreplace"))
    return path


def render(run: RunView) -> str:
    """The whole page. Whatever comes from the run is escaped."""
    drawn, script = _drawn(run)
    template = Template((files("tether.report") / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=escape(_look_up(run.config, ("recipe", "run.recipe", "run.name")) or run.folder.resolve().name),
        badge=_badge(run),
        subtitle=_subtitle(run),
        notices="".join(_notices(run)),
        outcome=_outcome(run),
        settings="".join(_settings(run.config)),
        reading=_reading(run),
        figures=_cards((*PANELS, *CURRICULUM_PANELS), drawn),
        pipeline=pipeline_section(run, _cards(PIPELINE_PANELS, drawn)),
        fates=fates_table(Balance(run)),
        times=_times(run),
        samples=_samples(run),
        config=escape(json.dumps(run.config, indent=2, ensure_ascii=False)),
        bokeh="\n".join(Resources(mode="inline", components=["bokeh"]).js_raw),
        script=script,
    )


def style() -> str:
    """The style sheet that stands in the page, for other pages of the same look."""
    page = (files("tether.report") / "page.html").read_text(encoding="utf-8")
    return page.partition("<style>")[2].partition("</style>")[0]


def _drawn(run: RunView) -> tuple[Mapping[str, str], str]:
    """The figures of a run by the titles of their panels, and the script that fills them."""
    steps = DataRange1d(range_padding=0.02)
    all_panels = (*PANELS, *CURRICULUM_PANELS, *PIPELINE_PANELS)
    plots = {panel.title: plot for panel in all_panels if (plot := draw(panel, run, steps)) is not None}
    script, divs = components(plots) if plots else ("", {})
    return divs, script


def _cards(panels: Iterable[Panel], divs: Mapping[str, str]) -> str:
    absent = '<div class="absent">not measured in this run</div>'
    return "\n".join(
        f'<div class="card"><h3>{escape(panel.title)}</h3>{divs.get(panel.title, absent)}'
        f"<p>{escape(panel.says)}</p></div>"
        for panel in panels
        if panel.title in divs or not panel.is_optional
    )


def _reading(run: RunView) -> str:
    """How to read curves that are too long for a dot a step."""
    if len(run.steps) <= FEW_POINTS:
        return ""
    return f'<p class="soft reading">Pale: each step. Strong: running mean over {1 / NUM_WINDOWS:.0%} of the run.</p>'


def _subtitle(run: RunView) -> str:
    last = run.events[-1] if run.events else None
    if last is None:
        return "Nothing was recorded yet."
    return f"{last.step:,} steps, {last.version:,} optimizer updates, {len(run.ledger):,} rollouts in the ledger"


def _badge(run: RunView) -> str:
    """How it ended; a run that somebody stopped did not fail, and of a lost end nothing is claimed."""
    kind, label = run.status, str(run.status)
    if run.is_interrupted:
        kind, label = "unfinished", "interrupted"
    elif kind == "unfinished" and _end_is_lost(run):
        label = "end unknown"
    return f'<span class="badge {kind}">{label}</span>'


def _end_is_lost(run: RunView) -> bool:
    return any(gap.file == EVENTS_FILE and not gap.is_torn for gap in run.gaps)


def _notices(run: RunView) -> Iterable[str]:
    failure = run.last("fail")
    if run.is_interrupted and failure is not None:
        yield (
            f'<div class="notice mild"><strong>This run was interrupted at step {failure.step}.</strong> '
            "Somebody stopped it; the curves end there.</div>"
        )
    elif run.status == "failed" and failure is not None:
        why = escape(failure.note) or "no reason was recorded"
        yield f'<div class="notice"><strong>This run failed at step {failure.step}.</strong> {why}</div>'
    if run.status == "unfinished" and not _end_is_lost(run):
        yield (
            '<div class="notice mild"><strong>This run has not finished.</strong> '
            "It still goes on, or was stopped from outside; the curves end where the journal ends.</div>"
        )
    for gap in run.gaps:
        yield f'<div class="notice{" mild" if gap.is_torn else ""}">{escape(str(gap))}</div>'


def _outcome(run: RunView) -> str:
    finish = run.last("finish")
    numbers = _numbers(finish.metrics) if finish else {}
    before, after = numbers.get("eval/accuracy_before"), numbers.get("eval/accuracy_after")
    heading = '<p class="soft">Held-out accuracy, before and after</p>'
    if before is None or after is None:
        evals = run.series("eval/accuracy", "eval")[1]
        if not len(evals):
            return f"{heading}<p>not measured in this run</p>"
        if len(evals) == 1:
            return f'{heading}<p class="big">{evals[0]:.3f}</p><p class="gain soft">the only evaluation</p>'
        before, after = float(evals[0]), float(evals[-1])
    text = f'{heading}<p class="big">{before:.3f} → {after:.3f}</p>'
    gain, low, high = (numbers.get(f"eval/accuracy_gain{end}") for end in ("", "_low", "_high"))
    if gain is None or low is None or high is None:
        return f'{text}<p class="gain soft">first and last evaluation; no paired interval was recorded</p>'
    kind = "finished" if low > 0 else "failed" if high < 0 else "unfinished"
    interval = f'<span class="whole">paired 95 % interval {low:+.3f} to {high:+.3f}</span>'
    return f'{text}<p class="gain {kind}">{gain:+.3f}, {interval}</p>{_in_between(run)}'


def _in_between(run: RunView) -> str:
    """What first and last do not tell: a best evaluation that was lost again."""
    finish = run.last("finish")
    told = best_last_trailing(finish.metrics) if finish else None
    return f'<p class="soft">{escape(told)}</p>' if told else ""


def _settings(config: Mapping[str, Any]) -> Iterable[str]:
    for label, places in SETTINGS:
        value = _look_up(config, places)
        if value is not None:
            yield f"<div><dt>{escape(label)}</dt><dd>{escape(value)}</dd></div>"


def _look_up(config: Mapping[str, Any], places: Iterable[str]) -> str | None:
    """The first of some dotted places that holds a plain value, or the names of a list of parts, as text."""
    for place in places:
        value: Any = config
        for key in place.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, list) and value:
            return ", ".join(str(part["name"]) for part in value if isinstance(part, Mapping) and "name" in part)
        if isinstance(value, str | int | float):
            return str(value)
    return None


def _numbers(metrics: Metrics) -> dict[str, float]:
    return {name: metric.value for name, metric in metrics.items() if not isinstance(metric.value, Mapping)}


def _times(run: RunView) -> str:
    totals = {name: seconds for name, seconds in run.totals("time/").items() if name.endswith("_s")}
    if not totals:
        return '<p class="soft">not measured in this run</p>'
    largest = max(totals.values()) or 1.0
    rows = [
        f'<tr><td class="whole">{escape(name.removeprefix("time/").removesuffix("_s").replace("_", " "))}</td>'
        f'<td class="bar"><i style="width:{max(0.0, seconds / largest):.2%}"></i></td>'
        f'<td class="num">{seconds:,.1f} s</td></tr>'
        for name, seconds in totals.items()
    ]
    all_of_these = sum(totals.values())
    rows.append(f'<tr><td class="soft whole">all of these</td><td></td><td class="num">{all_of_these:,.1f} s</td></tr>')
    return (
        '<p class="soft">Seconds that each part measured while it worked. The wall clock of the run counts loading, '
        "and the time between the parts, as well.</p>"
        f'<table><tr><th>part</th><th></th><th class="num">seconds of work</th></tr>{"".join(rows)}</table>'
    )


def _samples(run: RunView) -> str:
    stored = run.rollouts
    if not stored:
        return '<p class="soft">No samples were stored in this run.</p>'
    is_short = len(stored) <= 2 * NUM_SAMPLES
    shown = stored if is_short else stored[:NUM_SAMPLES] + stored[-NUM_SAMPLES:]
    rows = "".join(_sample_row(sample) for sample in shown)
    which = "All stored samples." if is_short else "The earliest and the latest stored samples."
    head = "".join(f"<th>{name}</th>" for name in ("step", "rollout", "staleness", "reward", "prompt", "completion"))
    return (
        f'<p class="soft">{which} <code>tether show RUN ROLLOUT</code> shows one token by token.</p>'
        f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>'
    )


def _sample_row(sample: Sample) -> str:
    staleness = sample.staleness
    low, high = (int(staleness.min()), int(staleness.max())) if len(staleness) else (0, 0)
    spread = str(low) if low == high else f"{low}–{high}"  # noqa: RUF001
    cells = (str(sample.step), sample.id, spread, f"{sample.reward:g}")
    plain = "".join(f'<td class="whole">{escape(cell)}</td>' for cell in cells)
    texts = "".join(f'<td class="mono text">{escape(text)}</td>' for text in (sample.prompt, sample.completion))
    return f"<tr>{plain}{texts}</tr>"
