"""What the loss is told about the scope it is measured over, and what is remembered from one update to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.algorithm import Algorithm
from tether.core.loss import measure_scope, measure_traits
from tether.core.memory import EdgeStatistics, Memory
from tether.core.statistics import Part
from tether.core.tokens import TokenBatch


class Measuring:
    """The statistics of every update, by the scope of the recipe.

    ``micro-batch``: each micro-batch's own, from its own forward pass. ``step`` and ``rank``: of all micro-batches, at
    the weights just before the update: from the one forward pass of a step of one micro-batch, else from a pass of
    their own (``preview``). ``lagged``: those of the update before. The trainer is one rank, so ``step`` and ``rank``
    are the same here.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        self._needs = any(traits.needs for traits in algorithm.traits)
        self._memory = Memory()

    def ahead(self, batches: Sequence[TokenBatch], preview: Callable[[], Sequence[Part]]) -> EdgeStatistics | None:
        """What holds for every micro-batch of the step; ``None``: each is measured with ``own``."""
        if not self._needs:
            return measure_scope(self._algorithm, [])
        if self._algorithm.measure == "lagged":
            nobody = batches[0].select(torch.zeros_like(batches[0].trainable))
            return self._memory.lagged(measure_scope(self._algorithm, [(nobody.logp_behavior, nobody)]))
        if self._algorithm.measure == "micro-batch" or len(batches) == 1:
            return None
        return self._memory.averaged(measure_scope(self._algorithm, preview()))

    def own(self, logp: Float[Tensor, "T"], tokens: TokenBatch) -> EdgeStatistics:
        """A micro-batch's own statistics, at its forward pass."""
        return self._memory.averaged(measure_scope(self._algorithm, [(logp, tokens)]))

    def step_size(self, measured: Sequence[Part]) -> float:
        """Factor of the learning rate, over the whole step whatever the recipe's scope; this waits for the device."""
        chosen = self._algorithm.step_size
        if chosen is None:
            return 1.0
        level = self._algorithm.level
        return float(chosen(measure_traits([chosen.traits], level, measured)[chosen.traits.measured(level)]))

    def keep(self, used: EdgeStatistics, measured: Sequence[Part]) -> None:
        """Once an update is made: remember it for the next. ``used``: the statistics of its last micro-batch."""
        if not self._needs or self._algorithm.measure in ("micro-batch", "rank"):
            return
        if self._algorithm.measure == "lagged":
            used = self._memory.averaged(measure_scope(self._algorithm, measured))
        self._memory.keep(used)

    def state(self) -> dict[str, Any]:
        """What the next update depends on."""
        return self._memory.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``."""
        self._memory.restore(state)
