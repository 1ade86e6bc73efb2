import re

import pytest

from tests.report.conftest import make_run
from tests.report.flow import make_flow
from tests.report.test_report import parse
from tether.journal import RunView, RunWriter
from tether.journal.waits import where_time_went
from tether.records import Event, Metric
from tether.report import write_report
from tether.report.pipeline import PARTS, PIPELINE_PANELS


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    folder = make_flow(tmp_path_factory.mktemp("flow") / "run")
    write_report(folder)
    return folder


def steps_of(**waits: float) -> list[Event]:
    """Two steps that end 5 and 10 seconds after the run began, each with half of the waits."""
    metrics = {f"wait/{name.replace('__', '/')}_s": Metric(seconds / 2, "sum") for name, seconds in waits.items()}
    return [
        Event(event="step", step=n, version=n, metrics={**metrics, "time/virtual_s": Metric(5.0 * n, "last")})
        for n in (1, 2)
    ]


def test_the_pipeline_has_its_bars_and_every_panel(flow):
    text = parse(flow / "report.html").text
    for panel in PIPELINE_PANELS:
        assert panel.title in text
        assert "Healthy:" in panel.says
    for who in ("trainer", "feed", "engine-0", "engine-1"):
        assert re.search(rf"{who}\s*(working|free to ask|sampling) \d+%", text)
    assert "not measured in this run" not in text.partition("Pipeline")[2].partition("Where it went")[0]


def test_the_bars_of_one_part_fill_its_whole_time(flow):
    html = (flow / "report.html").read_text()
    bars = re.findall(r'<div class="spent">(.*?)</div>', html)
    assert len(bars) == 4
    for bar in bars:
        widths = [float(width) for width in re.findall(r"width:([\d.]+)%", bar)]
        assert sum(widths) == pytest.approx(100.0, abs=0.05)


def test_a_run_that_recorded_none_of_it_says_so_in_one_sentence(tmp_path):
    text = parse(write_report(make_run(tmp_path / "run", 20))).text
    part = text.partition("Pipeline")[2].partition("Where it went")[0]
    assert part.strip() == "Nothing of it was recorded in this run."


def test_fates_stand_with_their_lengths_and_the_bias(flow):
    text = parse(flow / "report.html").text
    assert re.search(r"fate\s*rollouts\s*mean\s*p50\s*p90\s*to trained\s*trained\s*2\d\d\s*\d+\.\d", text)
    assert re.search(r"what was dropped or lost had \d\.\d\d x the length of what was trained", text)


def test_what_is_not_waited_is_worked():
    trainer, feed, engine = where_time_went(steps_of(data=3.0, settle=1.0, slot=2.0, engine_idle__engine_0=4.0))
    assert trainer.parts == {
        "working": 6.0,
        "waited for data": 3.0,
        "waited for publications": 0.0,
        "waited for generation to settle": 1.0,
    }
    assert feed.parts == {"free to ask": 8.0, "held back by the bound": 2.0}
    assert (engine.who, engine.parts) == ("engine_0", {"sampling": 6.0, "idle": 4.0})
    assert {part for spent in (trainer, feed, engine) for part in spent.parts} == set(PARTS)


def test_waits_without_a_clock_say_nothing():
    assert where_time_went([Event(event="step", step=1, version=1, metrics={"wait/data_s": Metric(1.0, "sum")})]) == ()
    assert where_time_went([]) == ()


def test_an_id_with_two_lines_is_not_said_to_be_there_once(tmp_path):
    folder = make_run(tmp_path / "run", 9)
    line = RunView(folder).ledger[0]
    with RunWriter.reopen(folder) as writer:
        writer.ledger(line)
    text = parse(write_report(folder)).text
    assert "all, each exactly once" not in text
    assert "lines; ids that have more than one: 1" in text
