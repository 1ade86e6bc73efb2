"""How far SAT's radius contracts on a token that has moved by u, against the scale q of the mismatch.

``psi(0) = 1``, ``psi(q) = 1/2``, not increasing, in (0, 1] (the step reaches 0); detached. An infinite q gates nothing:
psi is 1. The paper (arXiv:2607.18722) has ``hill`` with exponent 2 alone; the others are ours, for ablations, and are
best compared by the radius that they amount to (``core.surrogate.effective_radius``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from tether.registry import KERNELS

MOST_HALVINGS = 126.0
"""Of a radius: 2^-126 is the smallest normal float32, so that psi never becomes 0."""


@KERNELS.register("hill")
@final
@dataclass(frozen=True, slots=True)
class Hill:
    """``psi(u; q) = 1 / (1 + (u / q)^exponent)``: SAT's kernel (arXiv:2607.18722, Eq. 3.2) at exponent 2.

    >>> import torch
    >>> Hill()(torch.tensor([0.0, 0.15, 0.18]), torch.tensor(0.15))
    tensor([1.0000, 0.5000, 0.4098])

    In float32 it ends at 0 where ``(u / q)^exponent`` passes 3e38: at exponent 2 for q below 1e-18.
    """

    exponent: float = 2.0
    """Steepness; greater is closer to a step at q."""

    def __post_init__(self) -> None:
        if not 0 < self.exponent <= 64:
            raise ValueError(f"exponent of the hill kernel must lie in (0, 64]; got {self.exponent}")

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction ``[T]`` at distance ``u``."""
        return (u / q).pow_(self.exponent).add_(1.0).reciprocal_()


@KERNELS.register("exponential")
@final
@dataclass(frozen=True, slots=True)
class Exponential:
    """``psi(u; q) = 2^-(u / q)``: half the radius for every q (ours, not in the paper).

    Falls at once, where hill is flat near 0, and has the lighter tail: 1/4 at 2 q, where hill has 1/5, 1/1024 at 10 q,
    where hill has 1/101.

    >>> import torch
    >>> Exponential()(torch.tensor([0.0, 0.15, 0.18]), torch.tensor(0.15))
    tensor([1.0000, 0.5000, 0.4353])
    """

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction ``[T]`` at distance ``u``."""
        return (u / q).clamp_(max=MOST_HALVINGS).neg_().exp2_()


@KERNELS.register("gaussian")
@final
@dataclass(frozen=True, slots=True)
class Gaussian:
    """``psi(u; q) = 2^-(u / q)^2``: flat near 0 like hill, with the lightest tail (ours, not in the paper).

    >>> import torch
    >>> Gaussian()(torch.tensor([0.0, 0.15, 0.18]), torch.tensor(0.15))
    tensor([1.0000, 0.5000, 0.3686])
    """

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction ``[T]`` at distance ``u``."""
        return (u / q).square_().clamp_(max=MOST_HALVINGS).neg_().exp2_()


@KERNELS.register("reciprocal")
@final
@dataclass(frozen=True, slots=True)
class Reciprocal:
    """``psi(u; q) = q / (q + u)``: the heaviest tail, hill with exponent 1 (ours, not in the paper).

    >>> import torch
    >>> Reciprocal()(torch.tensor([0.0, 0.15, 0.18]), torch.tensor(0.15))
    tensor([1.0000, 0.5000, 0.4545])
    """

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction ``[T]`` at distance ``u``; as a quotient, because an infinite q over itself is no number."""
        return (u / q).add_(1.0).reciprocal_()


@KERNELS.register("step")
@final
@dataclass(frozen=True, slots=True)
class Step:
    """``psi(u; q) = 1`` below q, 1/2 at q, 0 above: nothing is left of a gated radius (ours, not in the paper).

    The limit of hill as its exponent grows. A token that has moved beyond q may not move further, so the effective
    radius is q itself, ``e^q - 1``, wherever PPO's is wider.

    >>> import torch
    >>> Step()(torch.tensor([0.0, 0.15, 0.18]), torch.tensor(0.15))
    tensor([1.0000, 0.5000, 0.0000])
    """

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction ``[T]`` at distance ``u``."""
        return (q - u).sign_().add_(1.0).mul_(0.5)
