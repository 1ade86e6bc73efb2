"""Structure by the documented Trace Event Format: phases M (metadata), X (complete), i (instant), C (counter)."""

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.cli.calling import tether
from tests.journal.books import edit, make_books
from tests.report.flow import STEP_S, make_flow
from tether.journal import RunView, Span
from tether.report.trace import stacked, trace_events, version_cuts, write_trace

METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


@pytest.fixture(scope="module")
def flow(tmp_path_factory):
    return make_flow(tmp_path_factory.mktemp("flow") / "run")


@pytest.fixture(scope="module")
def trace(flow):
    path, _ = write_trace(RunView(flow))
    return json.loads(path.read_text())


def names_of(trace) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}


def slices_of(trace, lane: str, cat: str):
    (pid,) = [pid for pid, name in names_of(trace).items() if name == lane]
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["pid"] == pid and e["cat"] == cat]


def check_format(events) -> None:
    """Fields and types that the format asks of each phase."""
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["args"], dict)
        match event["ph"]:
            case "M":
                key, kind = METADATA[event["name"]]
                assert isinstance(event["args"][key], kind)
                continue
            case "X":
                assert event["dur"] >= 0
                assert isinstance(event["cat"], str)
            case "i":
                assert event["s"] in ("g", "p", "t")
            case "C":
                assert event["args"]
                assert all(isinstance(v, int | float) for v in event["args"].values())
            case other:
                raise AssertionError(f"no phase {other!r} is written")
        assert isinstance(event["ts"], float)
        assert event["ts"] >= 0


def test_a_trace_is_the_documented_format(trace):
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    check_format(trace["traceEvents"])


def test_every_process_and_thread_has_one_name(trace):
    events = trace["traceEvents"]
    named = [(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"]
    assert len(named) == len(set(named))
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xi"} <= set(named)
    assert list(names_of(trace).values()) == [
        "counters", "trainer", "publications", "engine-0", "engine-1", "rewards", "queue",
    ]  # fmt: skip


def test_slices_of_a_thread_follow_each_other_or_lie_inside_each_other(trace):
    threads = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for events in threads.values():
        stack: list[float] = []
        for event in events:  # in the order written: by beginning, the longer first
            end = event["ts"] + event["dur"]
            while stack and stack[-1] <= event["ts"] + 1e-3:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-3
            stack.append(end)


def test_rows_of_an_engine_are_as_many_as_rollouts_at_a_time(flow, trace):
    spans = [span for span in RunView(flow).spans if span.lane == "engine-0"]
    moments = sorted({span.start_s for span in spans})
    most = max(sum(span.start_s <= at < span.end_s for span in spans) for at in moments)
    rows = stacked(spans)
    assert len(rows) == most
    assert all(a.end_s <= b.start_s for row in rows for a, b in pairwise(row))
    assert sum(map(len, rows)) == len(spans)
    threads = {e["tid"] for e in slices_of(trace, "engine-0", "rollout")}
    assert len(threads) == most


def test_a_publication_is_a_moment_on_every_engine(trace):
    moments = [e for e in trace["traceEvents"] if e["ph"] == "i"]
    lanes = {name: pid for pid, name in names_of(trace).items()}
    for engine in ("engine-0", "engine-1"):
        own = [e for e in moments if e["pid"] == lanes[engine]]
        assert [e["name"] for e in own] == [f"publication v{n}" for n in range(1, 41)]
        assert [e["args"]["version"] for e in own] == list(range(1, 41))
    assert {e["pid"] for e in moments} == {lanes["engine-0"], lanes["engine-1"]}


def test_a_rollout_that_spans_versions_is_cut_where_the_weights_changed(trace):
    rollouts = slices_of(trace, "engine-0", "rollout") + slices_of(trace, "engine-1", "rollout")
    pieces = slices_of(trace, "engine-0", "version") + slices_of(trace, "engine-1", "version")
    exact = [e for e in rollouts if e["args"].get("cut") == "when the weights changed"]
    guessed = [e for e in rollouts if e["args"].get("cut") == "in proportion to tokens"]
    assert exact
    assert guessed
    for event in exact:
        own = [p for p in pieces if p["pid"] == event["pid"] and p["tid"] == event["tid"]
               and event["ts"] <= p["ts"] < event["ts"] + event["dur"]]  # fmt: skip
        assert [p["ts"] for p in own[1:]] == [pytest.approx(p["args"]["version"] * STEP_S * 1e6) for p in own[1:]]
        assert sum(p["dur"] for p in own) == pytest.approx(event["dur"])


def test_versions_without_times_are_cut_in_proportion_to_their_tokens():
    about = {"versions": [[0, 1], [4, 1], [8, 2]]}
    span = Span(lane="engine-0", name="rollout", start_s=2.0, end_s=6.0, about=about)
    assert version_cuts(span) == ([(2.0, 0), (3.0, 4), (4.0, 8)], "in proportion to tokens")


def test_counters_end_at_zero_and_never_fall_below(trace):
    for name, series in (("in-flight rollouts", "rollouts"), ("queue depth", "groups")):
        levels = [e["args"][series] for e in trace["traceEvents"] if e["ph"] == "C" and e["name"] == name]
        assert min(levels) >= 0
        assert max(levels) > 1
        assert levels[-1] == 0
    stale = [e for e in trace["traceEvents"] if e["name"] == "staleness"]
    assert len(stale) == 40
    assert set(stale[0]["args"]) == {"mean", "max"}


def test_waits_of_the_trainer_stand_beside_its_steps(trace):
    steps, waits = slices_of(trace, "trainer", "step"), slices_of(trace, "trainer", "wait: data")
    assert len(steps) == len(waits) == 40
    assert {e["tid"] for e in steps}.isdisjoint(e["tid"] for e in waits)


def test_a_run_without_spans_is_drawn_from_its_ledger(tmp_path):
    folder = make_flow(tmp_path / "run", 5, trace=False)
    events = trace_events(RunView(folder))
    check_format(events)
    assert sum(e["ph"] == "X" and e["cat"] == "rollout" for e in events) == 5 * 2 * 4
    assert sum(e["ph"] == "X" and e["cat"] == "group" for e in events) == 10


def test_a_run_that_recorded_nothing_has_a_trace(tmp_path):
    check_format(trace_events(RunView(make_books(tmp_path / "run", [], end=""))))


def test_the_command_says_where_how_many_and_what_opens_it(flow, tmp_path, capsys):
    told = tether(capsys, "trace", flow, "--out", tmp_path / "t.json")
    num = len(json.loads((tmp_path / "t.json").read_text())["traceEvents"])
    assert told.out == (
        f"{tmp_path / 't.json'}: {num:,} events; open it at ui.perfetto.dev or chrome://tracing\n"
    )  # fmt: skip
    assert told.code == 0
    assert told.err == ""


def test_the_trace_of_a_killed_run_is_what_was_written(tmp_path, capsys):
    folder = make_flow(tmp_path / "run", 5, end="")
    edit(folder, "spans.jsonl", lambda lines: [*lines[:-1], lines[-1][:30]])
    told = tether(capsys, "trace", folder)
    assert told.code == 0
    assert "spans.jsonl was cut off" in told.err
    check_format(json.loads((folder / "trace.json").read_text())["traceEvents"])
