"""Penalties for leaving a frozen reference: estimators of KL(pi || reference) at the sampled token.

``delta = logp - logp_reference``, guarded like every log-ratio (``core.ratio``). After Schulman, "Approximating KL
divergence" (2020).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import hardtanh

from tether.registry import KL_PENALTIES

MOST_COEFFICIENT = 1e6
"""Largest factor in the loss."""
LOW_VAR_LIMIT = 10.0
"""``low_var_kl`` is held within this; beyond it the gradient is zero."""


@runtime_checkable
class KLPenalty(Protocol):
    """A penalty a token, times its coefficient in the loss."""

    @property
    def coefficient(self) -> float:
        """Factor in the loss, > 0."""
        ...

    def __call__(self, delta: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The estimate at every token, differentiable."""
        ...


def _check(name: str, coefficient: float) -> None:
    if not coefficient > 0:
        raise ValueError(f"coefficient of {name} must be > 0; got {coefficient}; leave [algorithm.kl] out for none")
    if coefficient > MOST_COEFFICIENT:
        raise ValueError(f"coefficient of {name} must be at most {MOST_COEFFICIENT:g}; got {coefficient}")


@KL_PENALTIES.register("k1")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class K1:
    """``delta``: unbiased as a value; as a loss its expected gradient is 0. ``[T] -> [T]``.

    >>> K1(coefficient=0.1)(torch.tensor([0.5]))
    tensor([0.5000])
    """

    coefficient: float = 1e-3
    """Factor in the loss."""

    def __post_init__(self) -> None:
        _check("k1", self.coefficient)

    def __call__(self, delta: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The estimate."""
        return delta


@KL_PENALTIES.register("k2")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class K2:
    """``delta^2 / 2``: biased as a value, its gradient is the true KL's in expectation. ``[T] -> [T]``.

    >>> K2(coefficient=0.1)(torch.tensor([0.5]))
    tensor([0.1250])
    """

    coefficient: float = 1e-3
    """Factor in the loss."""

    def __post_init__(self) -> None:
        _check("k2", self.coefficient)

    def __call__(self, delta: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The estimate."""
        return 0.5 * delta.square()


@KL_PENALTIES.register("k3")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class K3:
    """``e^-delta + delta - 1``: unbiased, >= 0, heavy-tailed where the policy avoids what the reference likes.

    ``[T] -> [T]``.

    >>> K3(coefficient=0.1)(torch.tensor([0.5]))
    tensor([0.1065])
    """

    coefficient: float = 1e-3
    """Factor in the loss."""

    def __post_init__(self) -> None:
        _check("k3", self.coefficient)

    def __call__(self, delta: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The estimate."""
        return torch.expm1(-delta) + delta


@KL_PENALTIES.register("low_var_kl")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class LowVarKL:
    """k3 held within +-10, as verl and slime name it: beyond, no gradient. ``[T] -> [T]``.

    >>> LowVarKL(coefficient=0.1)(torch.tensor([-5.0]))
    tensor([10.])
    """

    coefficient: float = 1e-3
    """Factor in the loss."""

    def __post_init__(self) -> None:
        _check("low_var_kl", self.coefficient)

    def __call__(self, delta: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The estimate."""
        return hardtanh(torch.expm1(-delta) + delta, -LOW_VAR_LIMIT, LOW_VAR_LIMIT)  # as the guard: core.ratio
