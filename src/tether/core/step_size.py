"""Step sizes: what scales the learning rate of a single update, from what the update is made of."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import Traits
from tether.core.statistics import Statistics


@runtime_checkable
class StepSize(Protocol):
    """A factor of the learning rate. Frozen; options are fields; no state. Measured over the whole step, always."""

    @property
    def traits(self) -> Traits:
        """What it measures: level and edge are its own, never the recipe's."""
        ...

    def __call__(self, stats: Statistics) -> Float[Tensor, ""]:
        """In (0, 1]."""
        ...
