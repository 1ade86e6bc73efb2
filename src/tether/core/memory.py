"""What is carried over from one update to the next: the statistics of a lagged scope, and running averages.

Rules and statistics stay pure; this small map is the state, and is saved with the optimizer's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from tether.core.ratio import Ratio
from tether.core.statistics import Sofar, Statistic, Statistics
from tether.core.tokens import TokenBatch

EdgeStatistics = Mapping[Ratio, Statistics]
"""What was measured over a scope, by the log-ratio it was measured on: two factors may read different ones."""


@final
@dataclass(frozen=True, slots=True)
class Smoothed:
    """The running average of a statistic over updates: ``decay * before + (1 - decay) * now``; at first, what is there.

    >>> from tether.core.statistics import AbsoluteQuantile
    >>> Smoothed(AbsoluteQuantile(0.9), decay=0.5).blend(torch.tensor(0.1), torch.tensor(0.3))
    tensor(0.2000)
    """

    statistic: Statistic
    """What is averaged."""
    decay: float
    """In [0, 1): how much of the past stays."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ValueError(f"decay of a running average must lie in [0, 1); got {self.decay}")

    @property
    def rounds(self) -> int:
        """Of the statistic."""
        return self.statistic.rounds

    def local(self, d: Tensor, tokens: TokenBatch, sofar: Sofar) -> Tensor:
        """Of the statistic."""
        return self.statistic.local(d, tokens, sofar)

    def reduce(self, parts: Sequence[Tensor]) -> Tensor:
        """Of the statistic."""
        return self.statistic.reduce(parts)

    def finish(self, reduced: Sofar) -> Tensor:
        """Of the statistic: the number of one update."""
        return self.statistic.finish(reduced)

    def blend(self, before: Tensor | None, now: Tensor) -> Tensor:
        """The average after one more update."""
        return now if before is None else torch.lerp(now, before.to(now), self.decay)


class Memory:
    """Statistics by name, as they stood after the last update."""

    def __init__(self) -> None:
        self._values: dict[str, Tensor] = {}

    def averaged(self, measured: EdgeStatistics) -> EdgeStatistics:
        """What was measured, with running averages brought up to this update; nothing is kept yet."""
        return {
            ratio: Statistics({one: self._averaged(ratio, one, value) for one, value in stats.values.items()})
            for ratio, stats in measured.items()
        }

    def lagged(self, nothing: EdgeStatistics) -> EdgeStatistics:
        """What the last update left, or before the first what a scope without tokens gives (``nothing``)."""
        return {
            ratio: Statistics(
                {one: self._values.get(_name(ratio, one), value).to(value) for one, value in stats.values.items()}
            )
            for ratio, stats in nothing.items()
        }

    def keep(self, averaged: EdgeStatistics) -> None:
        """Keep an update's statistics, as ``averaged`` gave them, for the next."""
        self._values = {_name(ratio, one): x.detach() for ratio, s in averaged.items() for one, x in s.values.items()}

    def state(self) -> dict[str, Tensor]:
        """Everything, by name."""
        return dict(self._values)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a ``state``; names of another recipe are never asked for."""
        self._values = dict(state)

    def _averaged(self, ratio: Ratio, statistic: Statistic, now: Tensor) -> Tensor:
        return (
            statistic.blend(self._values.get(_name(ratio, statistic)), now) if isinstance(statistic, Smoothed) else now
        )


def _name(ratio: Ratio, statistic: Statistic) -> str:
    return f"{ratio.edge}/{ratio.level}/{statistic!r}"
