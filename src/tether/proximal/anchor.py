"""Proximal = the trainer's weights when the batch was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.algorithm import StandsFor
from tether.registry import PROXIMALS


@PROXIMALS.register("anchor")
@final
@dataclass(frozen=True, slots=True)
class AnchorProximal:
    """The trainer's log-probabilities at the weights it holds when the batch is taken (verl's ``old_log_probs``).

    A proximal policy apart from the behavior policy: Hilton et al. 2021 (arXiv:2110.00641).

    With one update a batch the clipped ratio is exactly 1 and nothing is ever clipped: stale data then need a
    correction on the edge ``weight`` (anchor / behavior), or the recipe is refused. ``[T] -> [T]``.

    >>> import torch
    >>> AnchorProximal()(torch.tensor([-0.4]), torch.tensor([-1.0]))
    tensor([-0.4000])
    """

    stands_for: ClassVar[StandsFor] = "anchor"

    def __call__(self, logp_anchor: Float[Tensor, "T"], logp_behavior: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The anchor log-probabilities."""
        return logp_anchor
