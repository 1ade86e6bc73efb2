"""Answers that a reward could not judge, which look like wrong ones in its mean: told once they are many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tether.records import Metrics

PREFIX: Final = "reward/status/"
UNJUDGED: Final = ("timeout", "parse_error", "too_large")
"""Statuses of an answer whose 0 says nothing about it."""
LEAST: Final = 50
"""Answers that are looked at together."""
LARGE: Final = 0.1
"""Share of them that may be unjudged."""


class Unjudged:
    """Looks at the statuses of every step, and speaks of each reward once.

    >>> from tether.records import Metric
    >>> unjudged = Unjudged()
    >>> step = {"reward/status/math": Metric({"correct": 21.0, "timeout": 6.0, "parse_error": 3.0}, "sum", 30.0)}
    >>> [unjudged.look(step) for _ in range(4)]
    [[], ["reward 'math': 30 % of the answers could not be judged (timeout 20 %, parse_error 10 %) and counted as \
wrong; look at some with tether show, and raise the reward's limits or change what the prompt asks for"], [], []]
    """

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, float]] = {}
        self._told: set[str] = set()

    def look(self, metrics: Metrics) -> list[str]:
        """Messages that are due after this step."""
        due = []
        for name, metric in metrics.items():
            label = name.removeprefix(PREFIX)
            if label == name or label in self._told or isinstance(metric.value, float):
                continue
            counts = self._counts.setdefault(label, {})
            for status, num in metric.value.items():
                counts[status] = counts.get(status, 0.0) + num
            total = sum(counts.values())
            if total < LEAST:
                continue
            if sum(counts.get(status, 0.0) for status in UNJUDGED) > LARGE * total:
                self._told.add(label)
                due.append(_words(label, counts))
            del self._counts[label]
        return due


def _words(label: str, counts: Mapping[str, float]) -> str:
    shares = {status: counts[status] / sum(counts.values()) for status in UNJUDGED if status in counts}
    apart = ", ".join(f"{status} {100 * share:.0f} %" for status, share in shares.items())
    return (
        f"reward {label!r}: {100 * sum(shares.values()):.0f} % of the answers could not be judged ({apart}) and "
        "counted as wrong; look at some with tether show, and raise the reward's limits or change what the "
        "prompt asks for"
    )
