"""How far SAT's radius contracts on a token that has moved by u, against the scale q of the mismatch.

``psi(0) = 1``, ``psi(q) = 1/2``, not increasing, in (0, 1]; detached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from tether.registry import KERNELS


@KERNELS.register("hill")
@final
@dataclass(frozen=True, slots=True)
class Hill:
    """``psi(u; q) = 1 / (1 + (u / q)^exponent)``: SAT's kernel (arXiv:2607.18722, Eq. 3.2) at exponent 2.

    >>> import torch
    >>> Hill()(torch.tensor([0.0, 0.15, 0.18]), torch.tensor(0.15))
    tensor([1.0000, 0.5000, 0.4098])
    """

    exponent: float = 2.0
    """Steepness; greater is closer to a step at q."""

    def __post_init__(self) -> None:
        if not 0 < self.exponent <= 64:
            raise ValueError(f"exponent of the hill kernel must lie in (0, 64]; got {self.exponent}")

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction ``[T]`` at distance ``u``."""
        return (u / q).pow_(self.exponent).add_(1.0).reciprocal_()
