"""How often each problem was answered right, where old weights count less than new ones. No torch, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

FORGOTTEN = 2.0**-10
"""Of a group: a problem of which less is left counts as never measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of one problem; each number is a sum over groups, weighed as of ``version``."""

    right: float
    """Right answers."""
    answers: float
    groups: float
    version: int
    """The newest of the versions that began its groups."""

    @property
    def rate(self) -> float:
        """Share of right answers, whatever the weights' common factor."""
        return self.right / self.answers


class PassRates:
    """Pass rates of problems under a half-life in optimizer updates.

    A group that was begun by version ``v`` weighs ``w = 2 ** -((U - v) / half_life)`` after ``U`` updates. The rate of
    a problem is ``sum(w right) / sum(w answers)`` over its groups, the evidence behind it ``sum(w)``: in groups as good
    as one that today's weights had answered.

    >>> rates = PassRates(half_life=8.0)
    >>> rates.add("sums/7", right=4, answers=4, version=0)
    >>> rates.add("sums/7", right=1, answers=4, version=8)
    >>> rates.rate("sums/7"), rates.evidence("sums/7", updates=16)
    (0.5, 0.75)
    """

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._known: dict[str, Measured] = {}

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[float]:
        """Every rate."""
        return (known.rate for known in self._known.values())

    def add(self, problem: str, *, right: int, answers: int, version: int) -> None:
        """A group of a problem; ``version`` is the oldest that it has a token of."""
        before = self._known.get(problem, Measured(right=0.0, answers=0.0, groups=0.0, version=version))
        newest = max(version, before.version)
        fade, weight = self._weight(newest, before.version), self._weight(newest, version)
        self._known[problem] = Measured(
            right=before.right * fade + right * weight,
            answers=before.answers * fade + answers * weight,
            groups=before.groups * fade + weight,
            version=newest,
        )

    def rate(self, problem: str) -> float | None:
        """Share of right answers; ``None`` if it is not known."""
        known = self._known.get(problem)
        return None if known is None else known.rate

    def evidence(self, problem: str, updates: int) -> float:
        """Groups behind a rate, each as much as it still weighs."""
        known = self._known.get(problem)
        return 0.0 if known is None else known.groups * self._weight(updates, known.version)

    def guess(self, problem: str, updates: int, prior: float) -> float:
        """The rate with one answer's worth of ``prior`` mixed in: as evidence fades, it goes back to there."""
        known = self._known.get(problem)
        if known is None:
            return prior
        weight = self._weight(updates, known.version)
        return (known.right * weight + prior) / (known.answers * weight + 1)

    def forget(self, updates: int, keep: Callable[[str], bool]) -> None:
        """Drop problems of which next to nothing is left, but for those to ``keep``."""
        faded = [name for name in self._known if self.evidence(name, updates) < FORGOTTEN and not keep(name)]
        for name in faded:
            del self._known[name]

    def state(self) -> tuple[tuple[str, float, float, float, int], ...]:
        """Everything known, as plain values."""
        return tuple((name, m.right, m.answers, m.groups, m.version) for name, m in self._known.items())

    def restore(self, state: Iterable[tuple[str, float, float, float, int]]) -> None:
        """Know this instead."""
        self._known = {
            name: Measured(right=right, answers=answers, groups=groups, version=version)
            for name, right, answers, groups, version in state
        }

    def _weight(self, updates: int, version: int) -> float:
        return float(2.0 ** -((updates - version) / self._half_life))
