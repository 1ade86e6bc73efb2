import pytest

from tether.errors import DataError
from tether.journal import RunView, RunWriter, Span
from tether.pipeline.timeline import WAITS, Timeline
from tether.records import Metric


def none_of(*names: str) -> dict[str, Metric]:
    return {f"wait/{name}_s": Metric(0.0, "sum") for name in names}


def test_spans_come_back_as_they_were_told(tmp_path):
    with RunWriter(tmp_path / "run") as writer:
        timeline = Timeline(writer.span, lambda: 0.0)
        timeline.span("engine-0", "rollout", 1.0, 2.5, id="g0/1", versions=[0, 8], tokens=7, changes=[[2.0, 8]])
        timeline.span("trainer", "step", 2.5, 3.0)
    line = (tmp_path / "run" / "spans.jsonl").read_text().splitlines()[0]
    assert line == (
        '{"schema":1,"lane":"engine-0","name":"rollout","start_s":1.0,"end_s":2.5,'
        '"about":{"changes":[[2.0,8]],"id":"g0/1","tokens":7,"versions":[0,8]}}'
    )
    first, second = RunView(tmp_path / "run").spans
    assert first == Span(
        lane="engine-0",
        name="rollout",
        start_s=1.0,
        end_s=2.5,
        about={"id": "g0/1", "versions": [0, 8], "tokens": 7, "changes": [[2.0, 8]]},
    )
    assert second.about == {}


@pytest.mark.parametrize(
    ("start_s", "end_s", "about"),
    [(float("nan"), 1.0, {}), (0.0, float("inf"), {}), (1.0, 0.5, {}), (0.0, 1.0, {"x": float("nan")})],
)
def test_a_span_that_has_no_finite_place_in_time_never_gets_in(tmp_path, start_s, end_s, about):
    with RunWriter(tmp_path / "run") as writer, pytest.raises((ArithmeticError, DataError)):
        Timeline(writer.span, lambda: 0.0).span("trainer", "step", start_s, end_s, **about)
    assert RunView(tmp_path / "run").spans == ()


def test_a_wait_is_told_once_and_kinds_stay():
    timeline = Timeline(None, lambda: 0.0)
    timeline.waited("data", 1.5)
    timeline.waited("data", 0.5)
    timeline.waited("engine-1", 3.0)
    told = {"wait/data_s": Metric(2.0, "sum"), "wait/engine_idle/engine-1_s": Metric(3.0, "sum")}
    assert timeline.take() == none_of(*WAITS) | told
    assert timeline.take() == none_of(*WAITS, "engine_idle/engine-1")


def test_what_no_step_has_told_goes_on_after_a_checkpoint():
    before, after = Timeline(None, lambda: 0.0), Timeline(None, lambda: 0.0)
    before.waited("engine-0", 1.0)
    before.take()
    before.waited("slot", 2.0)
    after.restore(before.state())
    assert after.take() == before.take()


def test_a_wait_that_raises_is_counted_too_and_one_without_time_is_not_shown():
    spans: list[Span] = []
    clock = iter([1.0, 4.0, 4.0, 4.0])
    timeline = Timeline(spans.append, lambda: next(clock))
    with pytest.raises(KeyError), timeline.waiting("publication"):
        raise KeyError
    with timeline.waiting("publication"):
        pass
    assert timeline.take()["wait/publication_s"].value == 3.0
    assert [(span.name, span.start_s, span.end_s) for span in spans] == [("wait: publication", 1.0, 4.0)]


def test_spans_are_cut_back_with_the_journal(tmp_path):
    with RunWriter(tmp_path / "run") as writer:
        timeline = Timeline(writer.span, lambda: 0.0)
        timeline.span("trainer", "step", 0.0, 1.0)
        offsets = writer.offsets()
        timeline.span("trainer", "step", 1.0, 2.0)
        writer.cut_back(offsets, tmp_path / "kept")
    assert len(RunView(tmp_path / "run").spans) == 1
    assert (tmp_path / "kept" / "spans.jsonl").stat().st_size > 0


def test_a_wait_that_nobody_knows_is_refused():
    with pytest.raises(AssertionError, match="no wait 'pubication'"):
        Timeline(None, lambda: 0.0).waited("pubication", 1.0)
