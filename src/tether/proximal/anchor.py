"""Proximal = the trainer's weights when the batch was taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.proximal import StandsFor, provided
from tether.core.tokens import TokenBatch
from tether.registry import PROXIMALS


@PROXIMALS.register("anchor")
@final
@dataclass(frozen=True, slots=True)
class AnchorProximal:
    """The trainer's log-probabilities at the weights it holds when the batch is taken (verl's ``old_log_probs``).

    A proximal policy apart from the behavior policy: Hilton et al. 2021 (arXiv:2110.00641).

    With one update a batch the clipped ratio is exactly 1 and nothing is ever clipped: stale data then need a
    correction on the edge ``weight`` (anchor / behavior), or the recipe is refused. ``[T] -> [T]``.

    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.5], advantage=[1.0])
    >>> AnchorProximal()(replace(tokens, logp_anchor=logp.detach()), logp.detach())
    tensor([0.5000])
    """

    stands_for: ClassVar[StandsFor] = "anchor"
    inputs: ClassVar[tuple[str, ...]] = ("logp_anchor",)

    def __call__(self, tokens: TokenBatch, logp: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The anchor log-probabilities."""
        return provided(tokens.logp_anchor, "logp_anchor")
