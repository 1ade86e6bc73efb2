"""How much of a run's work was done at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tether.records import Event

APART = ("eval", "checkpoint")
"""Kinds of work during which a run does not train, left out of its wall time here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Seconds of a run's steps: those that passed, and those of work in engine and learner.

    With engine and learner in processes of their own, the wall time is at best that of the slower of them; one after
    the other, it is their sum.

    >>> str(Overlap(wall_s=55.0, generate_s=50.0, train_s=30.0))
    'wall 55.0 s = 1.10 x max(generate 50.0, train 30.0) = 0.69 x their sum'
    """

    wall_s: float
    generate_s: float
    train_s: float

    @property
    def to_slower(self) -> float:
        """Wall time over that of the slower of both: 1 is the best there is."""
        return self.wall_s / max(self.generate_s, self.train_s)

    @property
    def to_sum(self) -> float:
        """Wall time over that of both together."""
        return self.wall_s / (self.generate_s + self.train_s)

    def __str__(self) -> str:
        work = f"max(generate {self.generate_s:.1f}, train {self.train_s:.1f})"
        return f"wall {self.wall_s:.1f} s = {self.to_slower:.2f} x {work} = {self.to_sum:.2f} x their sum"


def overlap_of(steps: Iterable[Event]) -> Overlap:
    """The overlap of a run's ``step`` events."""
    steps = tuple(steps)

    def total(name: str) -> float:
        values = [event.metrics[name].value for event in steps if name in event.metrics]
        return sum(value for value in values if isinstance(value, float))

    apart_s = sum(total(f"time/{what}_s") for what in APART)
    return Overlap(
        wall_s=total("throughput/wall_s") - apart_s,
        generate_s=total("time/generate_s"),
        train_s=total("time/train_s"),
    )
