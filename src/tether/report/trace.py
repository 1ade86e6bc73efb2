"""The time line of a run in the Trace Event Format that ui.perfetto.dev and chrome://tracing open.

Each lane is a process, each kind of work in it a track, and what overlaps stands on rows below each other. Times are
microseconds of the run's clock. Format: "Trace Event Format" of the Chromium project (ph M, X, i and C).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final

from tether.journal import RunView, Span
from tether.journal.ledger import LedgerLine
from tether.journal.spans import PUBLICATIONS, QUEUE, REWARDS, ROLLOUTS, TRAINER
from tether.journal.writer import write_whole
from tether.records import Event

TRACE_FILE: Final = "trace.json"
COUNTERS: Final = "counters"
"""Lane of numbers over time."""
AFTER_ENGINES: Final = (ROLLOUTS, REWARDS, QUEUE)
COLOURS: Final = ("thread_state_running", "thread_state_iowait", "rail_response", "rail_animation", "good", "bad")
"""Reserved names of the format, of versions in turn; a viewer that does not know them colours by name."""

TraceEvent = dict[str, Any]


def write_trace(run: RunView, out: Path | None = None) -> tuple[Path, int]:
    """Write the trace of a run, ``trace.json`` in its directory unless said otherwise; its path and how many events."""
    path = out if out is not None else run.folder / TRACE_FILE
    events = trace_events(run)
    lines = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    kind = run.config.get("placement", {}).get("kind", "")
    about = json.dumps({"run": run.folder.resolve().name, "clock": "virtual" if kind == "inline" else "real"})
    text = f'{{"displayTimeUnit":"ms","otherData":{about},"traceEvents":[\n{lines}\n]}}\n'
    write_whole(path, text.encode("utf-8", "backslashreplace"))
    return path, len(events)


def trace_events(run: RunView) -> list[TraceEvent]:
    """Every event: names of lanes first, then what happened, by its beginning."""
    spans = run.spans or tuple(_spans_of_ledger(run.ledger))
    lanes = _lanes(spans)
    pids = {lane: pid for pid, lane in enumerate(lanes, start=1)}
    named: list[TraceEvent] = []
    timed: list[TraceEvent] = []
    for lane, pid in pids.items():
        named += [_name("process", pid, 0, lane), _sort("process", pid, 0, pid)]
        tracks = _tracks([span for span in spans if span.lane == lane])
        for tid, (label, row) in enumerate(tracks, start=1):
            named += [_name("thread", pid, tid, label), _sort("thread", pid, tid, tid)]
            for span in row:
                timed += _slices(span, pid, tid)
    timed += _publications(spans, pids)
    timed += _counters(run.steps, spans, pids[COUNTERS])
    return named + sorted(timed, key=lambda event: (event["ts"], -event.get("dur", 0.0)))


def _lanes(spans: Iterable[Span]) -> list[str]:
    """Lanes from top to bottom: numbers, the trainer, publications, engines, then what comes after them."""
    there = {span.lane for span in spans}
    engines = sorted(there - {TRAINER, PUBLICATIONS, *AFTER_ENGINES}, key=_natural)
    return [COUNTERS, *(lane for lane in (TRAINER, PUBLICATIONS, *engines, *AFTER_ENGINES) if lane in there)]


def _natural(name: str) -> list[tuple[int, str]]:
    """Sorting key by which ``engine-10`` comes after ``engine-9``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name) if part]


def _tracks(spans: Sequence[Span]) -> Iterator[tuple[str, list[Span]]]:
    """Rows of a lane with their names: a track for each kind of work, as many rows as there is at a time."""
    by_kind: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_kind[span.name.partition(":")[0]].append(span)
    for kind in sorted(by_kind, key=lambda kind: (kind == "wait", kind != "step", kind)):
        rows = stacked(by_kind[kind])
        for number, row in enumerate(rows):
            yield (kind if len(rows) == 1 else f"{kind} {number}"), row


def stacked(spans: Iterable[Span]) -> list[list[Span]]:
    """Spans on rows without overlap, each on the first row that is free: as many rows as overlap at a time.

    >>> def of(start_s, end_s):
    ...     return Span(lane="engine-0", name="rollout", start_s=start_s, end_s=end_s)
    >>> [[(s.start_s, s.end_s) for s in row] for row in stacked([of(0.0, 2.0), of(1.0, 3.0), of(2.0, 4.0)])]
    [[(0.0, 2.0), (2.0, 4.0)], [(1.0, 3.0)]]
    """
    rows: list[list[Span]] = []
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for span in sorted(spans, key=lambda span: (span.start_s, -span.end_s)):
        while busy and busy[0][0] <= span.start_s:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, len(rows))
            rows.append([])
        row = heappop(free)
        rows[row].append(span)
        heappush(busy, (span.end_s, row))
    return rows


def _slices(span: Span, pid: int, tid: int) -> Iterator[TraceEvent]:
    """A span; within a rollout that more than one version sampled, a slice for each."""
    id = span.about.get("id")
    name = f"{span.name} {id}" if id is not None else span.name
    cuts, how = version_cuts(span)
    args = {**span.about, "cut": how} if how else dict(span.about)
    event = _slice(name, span.name, (span.start_s, span.end_s), pid, tid, args)
    yield event | _coloured(cuts[0][1]) if len(cuts) == 1 else event
    if len(cuts) > 1:
        ends = [*(at for at, _ in cuts[1:]), span.end_s]
        for (start_s, version), end_s in zip(cuts, ends, strict=True):
            piece = _slice(f"v{version}", "version", (start_s, end_s), pid, tid, {"version": version, "cut": how})
            yield piece | _coloured(version)


def version_cuts(span: Span) -> tuple[list[tuple[float, int]], str]:
    """From when which version sampled a rollout, and how that is known; nothing of other spans.

    >>> whole = {"lane": "engine-0", "name": "rollout", "start_s": 0.0, "end_s": 8.0}
    >>> version_cuts(Span(**whole, about={"versions": [[0, 3], [8, 1]]}))
    ([(0.0, 0), (6.0, 8)], 'in proportion to tokens')
    >>> version_cuts(Span(**whole, about={"versions": [[0, 3], [8, 1]], "changes": [[5.0, 8]]}))
    ([(0.0, 0), (5.0, 8)], 'when the weights changed')
    """
    runs = [(int(run[0]), int(run[1])) for run in span.about.get("versions", ()) if isinstance(run, list | tuple)]
    if not runs:
        return [], ""
    changes = [(float(at), int(version)) for at, version in span.about.get("changes", ())]
    inside = sorted((min(max(at, span.start_s), span.end_s), version) for at, version in changes)
    if inside:
        return [(span.start_s, runs[0][0]), *inside], "when the weights changed"
    if len(runs) == 1:
        return [(span.start_s, runs[0][0])], ""
    total, before, cuts = sum(tokens for _, tokens in runs), 0, []
    for version, tokens in runs:
        cuts.append((span.start_s + (span.end_s - span.start_s) * before / total, version))
        before += tokens
    return cuts, "in proportion to tokens"


def _publications(spans: Sequence[Span], pids: Mapping[str, int]) -> Iterator[TraceEvent]:
    """On the lane of each engine, the moment from which all hold a version."""
    engines = [pid for lane, pid in pids.items() if lane not in (COUNTERS, TRAINER, PUBLICATIONS, REWARDS, QUEUE)]
    for span in spans:
        if span.lane == PUBLICATIONS:
            name = f"publication v{span.about['version']}" if "version" in span.about else "publication"
            for pid in engines:
                moment = {"ph": "i", "name": name, "cat": "publication", "ts": _us(span.end_s), "pid": pid, "tid": 1}
                yield {**moment, "s": "p", "args": dict(span.about)}


def _counters(steps: Iterable[Event], spans: Sequence[Span], pid: int) -> Iterator[TraceEvent]:
    """Rollouts in flight, finished groups in the queue, and the staleness of what was trained."""
    engine_spans = [span for span in spans if span.name == "rollout"]
    yield from _levels("in-flight rollouts", "rollouts", engine_spans, pid)
    yield from _levels("queue depth", "groups", [span for span in spans if span.lane == QUEUE and _is_work(span)], pid)
    for event in steps:
        values = {part: event.metrics.get(f"staleness/{part}") for part in ("mean", "max")}
        numbers = {k: m.value for k, m in values.items() if m is not None and not isinstance(m.value, Mapping)}
        at = event.metrics.get("time/virtual_s")
        if numbers and at is not None and not isinstance(at.value, Mapping):
            yield _counter("staleness", at.value, numbers, pid)


def _is_work(span: Span) -> bool:
    return not span.name.startswith("wait")


def _levels(name: str, series: str, spans: Iterable[Span], pid: int) -> Iterator[TraceEvent]:
    """How many of the spans there are at a time, at each moment at which that changes."""
    changes: defaultdict[float, int] = defaultdict(int)
    for span in spans:
        changes[span.start_s] += 1
        changes[span.end_s] -= 1
    level = 0
    for at in sorted(changes):
        if changes[at]:
            level += changes[at]
            yield _counter(name, at, {series: level}, pid)


def _spans_of_ledger(lines: Iterable[LedgerLine]) -> Iterator[Span]:
    """What a ledger tells of a run that kept no spans: its rollouts, and groups in the queue."""
    groups: dict[str, tuple[float, float]] = {}
    for line in lines:
        end_s = line.sampled_s if line.sampled_s is not None else line.finished_s
        if line.started_s is not None and end_s is not None and end_s >= line.started_s:
            about = {"id": line.id, "tokens": line.num_completion_tokens, "fate": line.fate}
            yield Span(lane=ROLLOUTS, name="rollout", start_s=line.started_s, end_s=end_s, about=about)
        if line.finished_s is not None and line.used_s is not None:
            since, _ = groups.get(line.group, (line.finished_s, 0.0))
            groups[line.group] = (max(since, line.finished_s), line.used_s)
    for group, (start_s, end_s) in groups.items():
        yield Span(lane=QUEUE, name="group", start_s=start_s, end_s=max(start_s, end_s), about={"id": group})


def _slice(name: str, kind: str, times: tuple[float, float], pid: int, tid: int, args: Mapping[str, Any]) -> TraceEvent:
    ts, end = map(_us, times)
    dur = round(end - ts, 3)
    return {"ph": "X", "name": name, "cat": kind, "ts": ts, "dur": dur, "pid": pid, "tid": tid, "args": dict(args)}


def _coloured(version: int) -> TraceEvent:
    return {"cname": COLOURS[version % len(COLOURS)]}


def _counter(name: str, at_s: float, values: Mapping[str, int | float], pid: int) -> TraceEvent:
    return {"ph": "C", "name": name, "ts": _us(at_s), "pid": pid, "tid": 0, "args": dict(values)}


def _name(what: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": f"{what}_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _sort(what: str, pid: int, tid: int, place: int) -> TraceEvent:
    return {"ph": "M", "name": f"{what}_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": place}}


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)
