"""A span: what one part of a run did from one moment to another, as a line of ``spans.jsonl``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tether.errors import DataError
from tether.journal.schema import SCHEMA, check_finite

TRAINER: Final = "trainer"
"""Lane of steps, checkpoints, evaluations, and of what the trainer waited for."""
PUBLICATIONS: Final = "publications"
REWARDS: Final = "rewards"
QUEUE: Final = "queue"
"""Lane of finished groups that wait for their batch."""
ROLLOUTS: Final = "rollouts"
"""Lane of rollouts where it is not known which engine samples them. Any other lane is an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Seconds on the run's clock, hence virtual ones under ``inline``."""

    lane: str
    """Who: ``trainer``, ``publications``, ``rewards``, ``queue``, ``rollouts``, or an engine's name."""
    name: str
    """What: ``step``, ``rollout``, ``reward``, ``group``, ``publication``, ``checkpoint``, ``eval``, ``wait: data``."""
    start_s: float
    end_s: float
    about: Mapping[str, Any] = field(default_factory=dict)
    """Plain values. Of a rollout: its ``id``, its ``tokens``, its ``versions`` as ``[version, tokens]`` in the order
    sampled, and ``changes``, each ``[seconds, version]`` from where it went on under other weights, if that is known.
    Of a publication: its ``version``."""


def span_to_json(span: Span) -> dict[str, Any]:
    """A span as the object of its line; what it is about is sorted by name.

    >>> span_to_json(Span(lane="trainer", name="step", start_s=1.0, end_s=2.5, about={"step": 3}))
    {'schema': 1, 'lane': 'trainer', 'name': 'step', 'start_s': 1.0, 'end_s': 2.5, 'about': {'step': 3}}
    """
    who = f"of span {span.name!r} of {span.lane!r}"
    start_s, end_s = check_finite(f"the start {who}", span.start_s), check_finite(f"the end {who}", span.end_s)
    if end_s < start_s:
        raise DataError(f"a span ends where it begins, or later; {span.name!r} of {span.lane!r}: {start_s} to {end_s}")
    about = {name: _plain(f"{name} {who}", span.about[name]) for name in sorted(span.about)}
    line = {"schema": SCHEMA, "lane": span.lane, "name": span.name, "start_s": start_s, "end_s": end_s}
    return {**line, "about": about} if about else line


def span_from_json(line: Mapping[str, Any]) -> Span:
    """The span of a line."""
    about = line.get("about", {})
    if not (isinstance(line["lane"], str) and isinstance(line["name"], str) and isinstance(about, Mapping)):
        raise DataError(f"lane and name are text, and about is an object; got {line['lane']!r}, {line['name']!r}")
    start_s, end_s = check_finite("the start", line["start_s"]), check_finite("the end", line["end_s"])
    return Span(lane=line["lane"], name=line["name"], start_s=start_s, end_s=max(start_s, end_s), about=about)


def _plain(what: str, value: Any) -> Any:
    """A value as JSON has it: text, whole numbers, finite numbers, and lists of these."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Sequence):
        return [_plain(what, item) for item in value]
    return check_finite(what, value)
