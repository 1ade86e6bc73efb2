import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any, get_args

import numpy as np
import pytest
from bokeh.core.validation import check_integrity
from bokeh.models import DataRange1d, HoverTool
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import RunDirectoryError
from tether.journal import RunView, RunWriter
from tether.records import Event, Metric
from tether.report import write_report
from tether.report.figures import FEW_POINTS, MOST_POINTS, draw, running_mean, thin
from tether.report.figures import lines_of as curves_of
from tether.report.panels import PANELS
from tether.verifier.verdict import Status

from .conftest import NASTY, make_run

MOST_BYTES = 5_000_000
MANY = {"first": ("tokens",), "sum": ("positive", "negative"), "each": ("0", "1", "2-3", "4-7", "8-15", "16+")}
"""What stands for the ``*`` of a curve's pattern."""


class Loads(HTMLParser):
    """Collects what a browser would fetch, and the text outside scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.scripts = 0
        self.text = ""
        self._inside: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self._inside.append(tag)
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "data", "srcset")]

    def handle_endtag(self, tag):
        while self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._inside):
            self.text += data


def parse(path) -> Loads:
    page = Loads()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def test_a_report_is_one_small_file_that_loads_nothing(finished):
    path = finished / "report.html"
    assert path.stat().st_size < MOST_BYTES
    page = parse(path)
    assert page.fetched == []
    assert page.scripts == 2  # the bundle and the figures
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"@import|url\(\s*['\"]?https?:", text.partition("<script>")[0])
    assert "default-src 'none'" in text  # the browser itself refuses whatever the bundle might ask for


def test_the_header_says_what_was_run_and_what_came_of_it(finished):
    text = parse(finished / "report.html").text
    for expected in ("quickstart", "finished", "sat-gspo", "tiny-moe", "batch-async", "0.312 → 0.628"):
        assert expected in text
    assert "+0.316, paired 95 % interval +0.281 to +0.351" in text
    assert re.search(r"scope \(measure\)\s*step", text)
    assert re.search(r"lag\s*8", text)


def test_the_ledger_and_the_seconds_of_work_are_tables(finished):
    text = parse(finished / "report.html").text
    assert re.search(r"filtered:flat-group\s*144", text)
    assert re.search(r"all, each exactly once\s*1,281", text)
    assert re.search(r"train\s*6\d\.\d s", text)


def test_the_seconds_of_work_are_added_up_and_told_from_the_wall_clock(tmp_path):
    with RunWriter(tmp_path) as writer:
        seconds = {"time/train_s": Metric(40.0, "sum"), "time/eval_s": Metric(2.5, "sum")}
        writer.event(Event(event="step", step=1, version=1, metrics=seconds))
    text = parse(write_report(tmp_path)).text
    assert re.search(r"part\s*seconds of work\s*train\s*40\.0 s\s*eval\s*2\.5 s\s*all of these\s*42\.5 s", text)
    assert "The wall clock of the run counts loading" in text


def test_every_figure_has_its_sentence_and_none_is_absent(finished):
    text = parse(finished / "report.html").text
    for panel in PANELS:
        assert panel.title in text
        assert panel.says in text
        assert "Healthy:" in panel.says
    assert "not measured in this run" not in text


def test_what_was_not_measured_is_said(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.event(Event(event="step", step=1, version=1, metrics={"reward/mean": Metric(0.5)}))
    text = parse(write_report(tmp_path)).text
    usual = [panel for panel in PANELS if not panel.is_optional]
    assert text.count("not measured in this run") == len(usual) - 1 + 2  # accuracy and wall time as well
    assert "This run has not finished." in text


def test_a_run_that_recorded_nothing_still_has_a_report(tmp_path):
    RunWriter(tmp_path).close()
    assert "Nothing was recorded yet." in parse(write_report(tmp_path)).text


def test_without_a_final_evaluation_the_first_and_the_last_one_are_told(tmp_path):
    with RunWriter(tmp_path) as writer:
        for step, accuracy in ((0, 0.25), (8, 0.5)):
            writer.event(Event(event="eval", step=step, version=step, metrics={"eval/accuracy": Metric(accuracy)}))
    text = parse(write_report(tmp_path)).text
    assert re.search(r"0\.250 → 0\.500\s*first and last evaluation; no paired interval was recorded", text)


def test_curves_with_the_same_steps_share_one_tooltip(finished):
    panel = next(panel for panel in PANELS if panel.title == "Mismatch")
    plot = draw(panel, RunView(finished), DataRange1d())
    assert plot is not None
    (hover,) = plot.select(HoverTool)
    assert [label for label, _ in hover.tooltips] == ["step", "mean |d|", "99th percentile"]


def test_a_failed_run_says_so_and_whatever_comes_from_it_is_escaped(tmp_path):
    note = "loss is nan <script>alert('note')</script>"
    run = make_run(tmp_path / "<b>run", 5, end="fail", note=note)
    with (run / "events.jsonl").open("a") as file:
        file.write('{"schema":1,"ev')
    page = parse(write_report(run))
    assert f"This run failed at step 5. {note}" in page.text
    assert re.search(r"0\.310\s*the only evaluation", page.text)
    assert "The last line of events.jsonl was cut off" in page.text
    assert NASTY in page.text
    assert page.scripts == 2


def test_a_run_that_was_interrupted_is_not_said_to_have_failed(tmp_path):
    text = parse(write_report(make_run(tmp_path / "run", 5, end="fail", note="interrupted"))).text
    assert re.search(r"quickstart\s*interrupted", text)
    assert "This run was interrupted at step 5." in text
    assert "failed" not in text


def test_a_garbage_line_is_told_and_nothing_is_claimed_of_the_end_behind_it(tmp_path):
    run = make_run(tmp_path / "run", 5)
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join([*lines[:4], b"garbage\n", *lines[4:], b'{"schema":1,"ev']))
    text = parse(write_report(run)).text
    assert f"Line 5 of events.jsonl is not JSON; it and what follows it ({len(lines) - 3} lines) are left out." in text
    assert re.search(r"quickstart\s*end unknown", text)
    assert "It still goes on" not in text
    assert "cut off" not in text


@pytest.mark.parametrize("value", [1e38, 1e39, 1e300, -1e300])
def test_a_value_beyond_single_precision_is_drawn_as_it_is(tmp_path, value):
    with RunWriter(tmp_path) as writer:
        for step, reward in enumerate((0.5, value)):
            metrics = {"reward/mean": Metric(reward), "time/train_s": Metric(abs(value), "sum")}
            writer.event(Event(event="step", step=step, version=step, metrics=metrics))
    write_report(tmp_path)
    panel = next(panel for panel in PANELS if panel.title == "Reward")
    plot = draw(panel, RunView(tmp_path), DataRange1d())
    assert plot is not None
    assert plot.renderers[0].data_source.data["y"].tolist() == [0.5, value]


def test_the_report_goes_where_it_is_sent(tmp_path):
    RunWriter(tmp_path / "run").close()
    assert write_report(tmp_path / "run") == tmp_path / "run" / "report.html"
    assert write_report(tmp_path / "run", tmp_path / "elsewhere.html") == tmp_path / "elsewhere.html"
    with pytest.raises(RunDirectoryError, match=r"cannot write .*missing/r.html"):
        write_report(tmp_path / "run", tmp_path / "missing" / "r.html")


def test_curves_share_their_steps_and_bokeh_finds_nothing_to_warn_about(finished, caplog):
    run, steps = RunView(finished), DataRange1d()
    plots = [draw(panel, run, steps) for panel in PANELS if panel.kind == "curves"]
    assert all(plot is not None and plot.x_range is steps for plot in plots)
    check_integrity(set().union(*(plot.references() for plot in plots if plot is not None)))
    assert caplog.records == []


def test_a_value_of_zero_turns_a_log_axis_linear(tmp_path):
    with RunWriter(tmp_path) as writer:
        for step, q in enumerate((0.0, 0.1)):
            writer.event(Event(event="step", step=step, version=step, metrics={"sat/q": Metric(q)}))
    panel = next(panel for panel in PANELS if panel.title == "SAT's trust region")
    plot = draw(panel, RunView(tmp_path), DataRange1d())
    assert plot is not None
    assert type(plot.y_scale).__name__ == "LinearScale"


def test_a_pattern_finds_the_first_metric_that_fits(finished):
    (curve,) = panel_of("Throughput").curves
    ((_, (steps, values)),) = curves_of(curve, RunView(finished))
    assert len(steps) == 160
    assert values.min() > 2000


def run_of(folder, *steps: dict[str, Any], algorithm: dict | None = None) -> RunView:
    """A run of a few steps with these numbers."""
    with RunWriter(folder) as writer:
        writer.config({"algorithm": algorithm or {}})
        for step, numbers in enumerate(steps, start=1):
            metrics = {name: Metric(value) for name, value in numbers.items()}
            kinds = {"check": "probe/", "eval": "eval/"}
            others = {
                kind: {name: metrics.pop(name) for name in list(metrics) if name.startswith(start)}
                for kind, start in kinds.items()
            }
            for kind, found in {"step": metrics, **{kind: told for kind, told in others.items() if told}}.items():
                writer.event(Event(event=kind, step=step, version=step, metrics=found))
    return RunView(folder)


def test_several_samples_a_problem_are_three_curves_each_with_its_own_interval(tmp_path):
    numbers = {"eval/accuracy": 0.5, "eval/avg@8": 0.5, "eval/pass@8": 0.75, "eval/maj@8": 0.625}
    numbers |= {
        f"{name}_{end}": value + off for name, value in numbers.items() for end, off in (("low", -0.1), ("high", 0.1))
    }
    with RunWriter(tmp_path) as writer:
        writer.config({})
        for step in range(3):
            metrics = {name: Metric(value + 0.01 * step) for name, value in numbers.items()}
            writer.event(Event(event="eval", step=step, version=step, metrics=metrics))
    run = RunView(tmp_path)
    drawn = [line for curve in panel_of("Held-out accuracy").curves for line in curves_of(curve, run)]
    assert {own.label: series[1][0] for own, series in drawn} == {"accuracy": 0.5, "pass@8": 0.75, "maj@8": 0.625}
    bands = {own.label: own.band for own, _ in drawn}
    assert bands["pass@8"] == ("eval/pass@8_low", "eval/pass@8_high")
    plot = draw(panel_of("Held-out accuracy"), run, DataRange1d())
    assert len([glyph for glyph in plot.renderers if type(glyph.glyph).__name__ == "VArea"]) == 3


def test_the_best_evaluation_is_told_beside_the_last_ones(finished):
    text = (finished / "report.html").read_text()
    assert "best 0.700 at step 96, last 0.628, last quarter 0.610 (the best of 6 evaluations is optimistic)" in text


def test_what_is_held_back_is_summed_over_the_signs_of_the_advantage(tmp_path):
    numbers = {"fate/clipped/positive/outward": 0.25, "fate/clipped/negative/outward": 0.5, "fate/clipped/zero": 0.1}
    numbers |= {"fate/clipped/positive/pull_back": 0.0, "fate/clipped/negative/pull_back": 0.125}
    run = run_of(tmp_path, numbers)
    lines = [line for curve in panel_of("Tokens held back").curves for line in curves_of(curve, run)]
    held = {own.label: series[1].tolist() for own, series in lines}
    assert held == {"clipped outward": [0.75], "clipped pulling back": [0.125]}


@pytest.mark.parametrize(("masked", "labels"), [((0.0, 0.0), []), ((0.0, 0.5), ["masked outward"])])
def test_a_mask_is_drawn_where_it_held_anything_and_then_at_every_step(tmp_path, masked, labels):
    steps = ({"fate/masked/positive/outward": share, "fate/masked/negative/outward": 0.0} for share in masked)
    run = run_of(tmp_path, *steps)
    drawn = [line for curve in panel_of("Tokens held back").curves for line in curves_of(curve, run)]
    assert [own.label for own, _ in drawn] == labels
    assert all(series[1].tolist() == list(masked) for _, series in drawn)


def test_a_q_of_every_bin_is_drawn_where_the_bin_has_tokens_on_a_log_axis(tmp_path):
    run = run_of(tmp_path, {"sat/q/2-3": 0.0, "sat/q/16+": 0.0, "sat/q/1": 0.5}, {"sat/q/2-3": 0.25, "sat/q/1": 0.0})
    plot = draw(panel_of("SAT's trust region"), run, DataRange1d())
    assert list(lines_of(plot)) == ["q of 1", "q of 2-3"]
    assert type(plot.y_scale).__name__ == "LogScale"


def test_each_status_has_its_share_of_the_answers_the_most_frequent_first(tmp_path):
    with RunWriter(tmp_path) as writer:
        for step, counts in enumerate([{"wrong": 3.0, "correct": 1.0}, {"wrong": 2.0, "timeout": 6.0}], start=1):
            metrics = {"reward/status/math": Metric(counts, "sum", sum(counts.values()))}
            writer.event(Event(event="step", step=step, version=step, metrics=metrics))
    (curve,) = panel_of("How answers were judged").curves
    drawn = {own.label: series[1].tolist() for own, series in curves_of(curve, RunView(tmp_path))}
    assert list(drawn) == ["math timeout", "math wrong", "math correct"]
    assert drawn == {"math timeout": [0.0, 0.75], "math wrong": [0.75, 0.25], "math correct": [0.25, 0.0]}


def test_each_correction_has_its_weight_and_its_share_of_zeros_in_one_colour(tmp_path):
    names = [f"correction/{name}/{what}" for name in ("tis", "kpop") for what in ("mean_weight", "zero_fraction")]
    run = run_of(tmp_path, dict.fromkeys(names, 0.5))
    drawn = [own for curve in panel_of("Corrections").curves for own, _ in curves_of(curve, run)]
    assert [own.label for own in drawn] == [
        "kpop mean weight",
        "tis mean weight",
        "kpop weight 0",
        "tis weight 0",
    ]
    assert [own.colour for own in drawn[:2]] == [own.colour for own in drawn[2:]]
    assert len({own.colour for own in drawn}) == 2


def test_a_box_of_what_the_recipe_has_not_is_left_out(tmp_path):
    text = parse(write_report(run_of(tmp_path / "plain", {"clip/fraction": 0.1}).folder)).text
    assert not [panel.title for panel in PANELS if panel.is_optional and panel.title in text]
    numbers = {
        "sat/q/0": 0.1,
        "policy/step_size": 0.9,
        "correction/tis/mean_weight": 1.0,
        "mismatch/policy_abs_mean": 0.1,
        "mismatch/lost_mass_mean": 0.02,
        "probe/rerouted_share/engine-0": 0.006,
        "reward/part/math": 0.5,
        "reward/status/math": {"correct": 1.0},
        "reward/groups_mixed": 1.0,
        "eval/length_mean": 11.5,
    }
    text = parse(write_report(run_of(tmp_path / "all", numbers).folder)).text
    assert all(panel.title in text for panel in PANELS if panel.is_optional)


def test_the_header_names_the_parts_that_are_set_and_no_other(tmp_path):
    algorithm = {"proximal": {"name": "ewma"}, "corrections": [{"name": "tis"}, {"name": "kpop"}], "kl": {"name": "k3"}}
    algorithm |= {"step_size": None, "replay": []}
    text = parse(write_report(run_of(tmp_path, {}, algorithm=algorithm).folder)).text
    head = text.partition("Curves")[0]
    for expected in (r"denominator\s*ewma", r"corrections\s*tis, kpop", r"KL\s*k3"):
        assert re.search(expected, head)
    assert "step size" not in head
    assert "replay" not in head


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(2, 40))
def test_thinning_keeps_the_extremes_and_the_order(values, most):
    steps, kept = thin((np.arange(len(values)), np.array(values)), most)
    assert len(steps) <= most
    assert kept.max() == max(values)
    assert kept.min() == min(values)
    assert (np.diff(steps) > 0).all()


def panel_of(title: str):
    return next(panel for panel in PANELS if panel.title == title)


def lines_of(plot) -> dict[str, list]:
    """The renderers of each entry of a figure's legend."""
    (legend,) = plot.legend
    return {item.label.value: item.renderers for item in legend.items}


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300), st.integers(0, 30), st.integers(1, 50))
def test_a_running_mean_stays_between_the_extremes_and_a_window_of_1_changes_nothing(values, window, most):
    series = (np.arange(len(values)), np.array(values))
    steps, means = running_mean(series, window, most)
    assert len(steps) <= most
    assert (means >= min(values) * (1 - 1e-12)).all()
    assert (means <= max(values) * (1 + 1e-12)).all()
    assert running_mean(series, 1)[1].tolist() == values


def test_a_long_curve_is_pale_under_its_mean_and_a_short_one_has_dots(finished, tmp_path):
    long = lines_of(draw(panel_of("Mismatch"), RunView(finished), DataRange1d()))["mean |d|"]
    assert [(line.glyph.line_width, line.glyph.line_alpha) for line in long] == [(2.0, 1.0), (1.0, 0.3)]
    short = lines_of(draw(panel_of("Mismatch"), RunView(make_run(tmp_path / "run", FEW_POINTS)), DataRange1d()))
    assert [type(line.glyph).__name__ for line in short["mean |d|"]] == ["Scatter", "Line"]


def test_how_to_read_a_long_curve_is_said_where_there_is_one(finished, tmp_path):
    assert "running mean over 4% of the run" in parse(finished / "report.html").text
    assert "running mean" not in parse(write_report(make_run(tmp_path / "run", 5))).text


def test_a_curve_that_may_cover_another_has_no_dots(tmp_path):
    lines = lines_of(draw(panel_of("SAT's trust region"), RunView(make_run(tmp_path / "run", 9)), DataRange1d()))
    assert [len(lines[label]) for label in ("q", "below 1", "above 1")] == [2, 2, 1]


def test_the_bound_of_the_recipe_is_drawn_beside_the_staleness(tmp_path):
    run = make_run(tmp_path / "run", 20)
    assert "bound 15" not in lines_of(draw(panel_of("Staleness"), RunView(run), DataRange1d()))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "derived": {"staleness_bound": 15}}))
    (line,) = lines_of(draw(panel_of("Staleness"), RunView(run), DataRange1d()))["bound 15"]
    assert line.data_source.data["y"] == [15.0, 15.0]


def test_a_level_that_a_log_axis_cannot_show_is_left_out(tmp_path):
    run = make_run(tmp_path / "run", 5)
    config = json.loads((run / "config.json").read_text())
    config["algorithm"]["rule"]["epsilon_low"] = 0.0
    (run / "config.json").write_text(json.dumps(config))
    assert set(lines_of(draw(panel_of("SAT's trust region"), RunView(run), DataRange1d()))) == {
        "q",
        "below 1",
        "above 1",
    }


@pytest.mark.parametrize(("least", "count"), [(1e-2, 57), (1e-7, 19)])
def test_a_log_axis_that_spans_many_decades_has_fewer_labels(tmp_path, least, count):
    with RunWriter(tmp_path) as writer:
        for step, norm in enumerate((least, 1.0)):
            metrics = {"policy/grad_norm": Metric(norm)}
            writer.event(Event(event="step", step=step, version=step, metrics=metrics))
    plot = draw(panel_of("Gradient norm"), RunView(tmp_path), DataRange1d())
    assert plot is not None
    assert len(plot.yaxis.ticker.ticks) == count


def test_a_long_run_stays_under_the_limit(tmp_path):
    names = [
        curve.metric.replace("*", word)
        for panel in PANELS
        for curve in panel.curves
        if "histogram" not in curve.metric and curve.matches != "shares"
        for word in (MANY[curve.matches] if "*" in curve.metric else ("",))
    ]
    RunWriter(tmp_path).close()
    line = {"schema": 1, "event": "step", "version": 0}
    rng = np.random.default_rng(0)
    values = rng.uniform(size=(MOST_POINTS + 200, len(names)))
    with (tmp_path / "events.jsonl").open("w") as file:
        for step, row in enumerate(values.tolist()):
            counts = {status: round(100 * share) for status, share in zip(get_args(Status), row, strict=False)}
            statuses = {"reward/status/math": {"value": counts, "merge": "sum", "count": 1.0}}
            metrics = dict(zip(names, row, strict=True)) | statuses
            file.write(json.dumps({**line, "step": step, "metrics": metrics}) + "\n")
    assert write_report(tmp_path).stat().st_size < MOST_BYTES  # with more curves than any one run has


def test_a_report_is_made_without_torch(tmp_path):
    RunWriter(tmp_path).close()
    code = (
        f"import sys; from tether.report import write_report; write_report({str(tmp_path)!r}); "
        "assert not {'torch', 'transformers', 'pandas'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
