"""Proximal = the trainer's evaluation of the weights that each token was sampled with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.proximal import StandsFor, provided
from tether.core.tokens import TokenBatch
from tether.registry import PROXIMALS


@PROXIMALS.register("old")
@final
@dataclass(frozen=True, slots=True)
class OldProximal:
    """The trainer's log-probabilities at the version that each token was sampled with ("old logits").

    The clipped ratio is then staleness alone, and ``old / behavior`` the engine's mismatch alone (arXiv:2605.12070).
    With a correction on the edge ``weight`` the two multiply to ``pi / behavior``; without one the mismatch stays
    uncorrected, on purpose. ``[T] -> [T]``.

    >>> import torch
    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.5], advantage=[1.0])
    >>> OldProximal()(replace(tokens, logp_old=torch.tensor([0.1])), logp.detach())
    tensor([0.1000])
    """

    stands_for: ClassVar[StandsFor] = "old"
    inputs: ClassVar[tuple[str, ...]] = ("logp_old",)

    def __call__(self, tokens: TokenBatch, logp: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The old log-probabilities."""
        return provided(tokens.logp_old, "logp_old")
