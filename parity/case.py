"""One line of the table: a method here and there, and whether the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from parity.batches import SEEDS, SPREADS, Batch, batch
from parity.sides import Answer, Loss, Side, Tether, answer, unscaled

TOLERANCE = 1e-6
"""Of numbers that are the same. Everything is float32, whose last digit is worth 6e-8."""
VISIBLE = 1e-4
"""A difference that is documented must be at least this large in some batch, or it is none."""


class Gap(NamedTuple):
    """Largest differences over all batches, relative to what is compared."""

    value: float
    """Relative to the value or to the sum of ``|gradient|``, the larger: the terms of the sum have both signs."""
    gradient: float
    """Relative to the gradient's largest entry."""

    @property
    def most(self) -> float:
        """The larger."""
        return max(self)


class Difference(NamedTuple):
    """Why the numbers differ, and what gives the other library's."""

    cause: str
    """In a sentence."""
    explained: Loss
    """A loss that does what the cause says: its numbers must be the other library's."""

    @property
    def remedy(self) -> str:
        """The settings of tether's that give the other's numbers, if settings do."""
        is_setting = isinstance(self.explained, Tether) and self.explained.scale is unscaled
        return self.explained.settings if is_setting else ""


def as_it_is(given: Batch) -> Batch:
    """The batch."""
    return given


@dataclass(frozen=True, kw_only=True)
class Case:
    """The same method here and there, settings translated."""

    method: str
    ours: Side
    theirs: Side
    batch: Callable[[Batch], Batch] = as_it_is
    """What is special about the batches."""
    difference: Difference | None = None
    """None if the numbers are the same."""

    @property
    def peer(self) -> str:
        """Name of the other library."""
        return type(self.theirs).__name__.lower()

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.peer}-{self.method.replace(' ', '-')}"

    @cached_property
    def gaps(self) -> tuple[Gap, Gap | None]:
        """As translated; and with the cause of the difference modelled, if there is one."""
        batches = [self.batch(batch(kind, seed)) for kind in SPREADS for seed in SEEDS]
        theirs = [answer(self.theirs, b) for b in batches]
        modelled = None if self.difference is None else _gap(self.difference.explained, batches, theirs)
        return _gap(self.ours, batches, theirs), modelled


def _gap(side: Loss, batches: list[Batch], theirs: list[Answer]) -> Gap:
    gaps = [_relative(answer(side, b), other) for b, other in zip(batches, theirs, strict=True)]
    return Gap(max(g.value for g in gaps), max(g.gradient for g in gaps))


def _relative(left: Answer, right: Answer) -> Gap:
    size = max(abs(x) for side in (left, right) for x in (side.value, float(side.gradient.abs().sum())))
    most = max(float(side.gradient.abs().max()) for side in (left, right))
    assert size > 0, "nothing to compare: both losses are 0"
    return Gap(
        abs(left.value - right.value) / size,
        float((left.gradient - right.gradient).abs().max()) / most if most else 0.0,
    )
