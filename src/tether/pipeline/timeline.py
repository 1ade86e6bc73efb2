"""What each part of a run did when, and what it waited for: on the run's clock, hence exactly the same each time under
``inline``.

A wait is counted when it is over, in the step that is told next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, Final

from tether.journal.spans import Span
from tether.records import Completion, Ints, Metric, Metrics

WAITS: Final = ("data", "publication", "settle", "slot")
"""``data``: the trainer for a batch. ``publication``: the trainer until a publication is acknowledged. ``settle``: the
trainer until nothing is in generation. ``slot``: the feed for a slot, held back by the bound."""
ENGINE_IDLE: Final = "engine_idle"
"""An engine that has nothing to sample; one number an engine."""


class Timeline:
    """Writes spans and adds up waits.

    >>> spans, clock = [], iter([3.0, 5.5])
    >>> timeline = Timeline(spans.append, lambda: next(clock))
    >>> timeline.span("trainer", "step", 0.0, 2.0, step=1)
    >>> with timeline.waiting("data"):
    ...     pass
    >>> timeline.waited("engine-0", 1.5)
    >>> {name: metric.value for name, metric in timeline.take().items() if metric.value}
    {'wait/data_s': 2.5, 'wait/engine_idle/engine-0_s': 1.5}
    >>> [(span.lane, span.name, span.end_s) for span in spans]
    [('trainer', 'step', 2.0), ('trainer', 'wait: data', 5.5)]
    """

    def __init__(self, write: Callable[[Span], object] | None, now: Callable[[], float]) -> None:
        """``write`` takes each span, ``None`` where nobody wants them; ``now`` tells the run's clock."""
        self._write, self._now = write, now
        self._waits: dict[str, float] = dict.fromkeys(WAITS, 0.0)

    def span(self, lane: str, name: str, start_s: float, end_s: float, **about: Any) -> None:
        """Tell that ``lane`` did something from one moment to another; see ``journal.spans`` for lanes and names."""
        if self._write is not None:
            self._write(Span(lane=lane, name=name, start_s=start_s, end_s=end_s, about=about))

    def rollout(
        self,
        lane: str,
        id: str,
        completion: Completion,
        times: tuple[float, float],
        changes: Sequence[tuple[float, int]] = (),
    ) -> None:
        """Tell of a rollout: when it was asked for and sampled, and when it went on under other weights, each
        ``(seconds, version)``, where that is known."""
        about: dict[str, Any] = {"id": id, "tokens": len(completion), "versions": _runs_of(completion.version)}
        if changes:
            about["changes"] = [[seconds, version] for seconds, version in changes]
        self.span(lane, "rollout", *times, **about)

    @contextmanager
    def spanning(self, lane: str, name: str) -> Iterator[None]:
        """Show the block on a lane; one that took no time is not shown."""
        start_s = self._now()
        try:
            yield
        finally:
            if (end_s := self._now()) > start_s:
                self.span(lane, name, start_s, end_s)

    def waited(self, what: str, seconds: float) -> None:
        """Count a wait that is over: one of ``WAITS``, or an engine's name for the seconds that it was idle."""
        assert what in WAITS or what.startswith("engine"), f"no wait {what!r}; there are {', '.join(WAITS)}, engine-N"
        self._waits[what] = self._waits.get(what, 0.0) + seconds

    @contextmanager
    def waiting(self, what: str, lane: str = "trainer") -> Iterator[None]:
        """Count the block as a wait, and show it on a lane, the trainer's unless said otherwise: the feed's is the
        queue, an engine has its own. A wait that took no time is not shown."""
        start_s = self._now()
        try:
            yield
        finally:
            end_s = self._now()
            self.waited(what, end_s - start_s)
            if end_s > start_s:
                self.span(lane, f"wait: {what if what in WAITS else 'work'}", start_s, end_s)

    def take(self) -> Metrics:
        """The waits that ended since the last take, as ``wait/...`` metrics; a kind once seen stays, at 0 if none."""
        taken = {_metric_of(what): Metric(seconds, "sum") for what, seconds in sorted(self._waits.items())}
        self._waits = dict.fromkeys(self._waits, 0.0)
        return taken

    def state(self) -> dict[str, float]:
        """The waits that no step has told yet, for a checkpoint."""
        return dict(self._waits)

    def restore(self, waits: Mapping[str, float]) -> None:
        """Go on from such a state."""
        self._waits = dict(waits)


def _runs_of(version: Ints) -> list[list[int]]:
    """``[version, tokens]`` of each stretch of equal versions.

    >>> import numpy as np
    >>> _runs_of(np.array([0, 0, 8], np.int32))
    [[0, 2], [8, 1]]
    """
    starts = [at for at in range(len(version)) if at == 0 or version[at] != version[at - 1]]
    return [[int(version[at]), end - at] for at, end in pairwise([*starts, len(version)])]


def _metric_of(what: str) -> str:
    return f"wait/{what}_s" if what in WAITS else f"wait/{ENGINE_IDLE}/{what}_s"
