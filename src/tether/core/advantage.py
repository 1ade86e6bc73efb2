"""Group-relative advantages: credit of a response against the others of its prompt.

Everything is float64: in float32 a flat group of rewards 0.9 gets advantages of -0.06 from rounding alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor

from tether.registry import ADVANTAGES

Single = Literal["drop", "raw", "zero"]
"""A group of one has no baseline: leave it out, take its reward as it is (mean 0, std 1), or give it no credit."""

FLAT_TOLERANCE = 1e-8
"""A group whose rewards differ by no more than this, times the largest if that is above 1, is flat: advantage 0."""


@runtime_checkable
class Advantage(Protocol):
    """Credit of each response of one group."""

    @property
    def single(self) -> Single:
        """What happens to a group of one."""
        ...

    def __call__(self, rewards: Float64[Tensor, "n"]) -> Float64[Tensor, "n"] | None:
        """One advantage a response; ``None`` if the group is to be left out (one response, ``single = drop``)."""
        ...


def is_flat(rewards: Float64[Tensor, "n"]) -> bool:
    """True if the rewards of a group do not tell its responses apart."""
    spread = float(rewards.max() - rewards.min())
    return spread <= FLAT_TOLERANCE * max(1.0, float(rewards.abs().max()))


def _without_baseline(rewards: Float64[Tensor, "n"], single: Single) -> Float64[Tensor, "n"] | None:
    return {"drop": None, "raw": rewards, "zero": torch.zeros_like(rewards)}[single]


@ADVANTAGES.register("grpo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GRPO:
    """``A_i = (R_i - mean R) / (std R + 1e-6)`` over a prompt's responses (arXiv:2402.03300). ``[n] -> [n]``.

    >>> [round(x, 4) for x in GRPO()(torch.tensor([1, 0, 0, 1.], dtype=torch.float64)).tolist()]
    [0.866, -0.866, -0.866, 0.866]
    """

    ddof: Literal[0, 1] = 1
    """Divisor n - ddof of the variance: 1 as in verl and slime, 0 as in a few others."""
    single: Single = "drop"
    """What happens to a group of one."""

    def __call__(self, rewards: Float64[Tensor, "n"]) -> Float64[Tensor, "n"] | None:
        """Center and scale; a flat group gets exactly 0."""
        if len(rewards) == 1:
            alone = _without_baseline(rewards, self.single)
            return alone if alone is None else alone / (1.0 + 1e-6)
        if is_flat(rewards):
            return torch.zeros_like(rewards)
        return (rewards - rewards.mean()) / (rewards.std(correction=self.ddof) + 1e-6)


@ADVANTAGES.register("dr-grpo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DrGRPO:
    """``A_i = R_i - mean R``: no division by the spread (arXiv:2503.20783). ``[n] -> [n]``.

    >>> DrGRPO()(torch.tensor([1, 0, 0, 0.], dtype=torch.float64)).tolist()
    [0.75, -0.25, -0.25, -0.25]
    """

    single: Single = "drop"
    """What happens to a group of one."""

    def __call__(self, rewards: Float64[Tensor, "n"]) -> Float64[Tensor, "n"] | None:
        """Center; a flat group gets exactly 0."""
        if len(rewards) == 1:
            return _without_baseline(rewards, self.single)
        return torch.zeros_like(rewards) if is_flat(rewards) else rewards - rewards.mean()


@ADVANTAGES.register("rloo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RLOO:
    """``A_i = R_i - mean of the others``: leave-one-out (arXiv:2402.14740). ``[n] -> [n]``.

    >>> [round(x, 4) for x in RLOO()(torch.tensor([1, 0, 0, 0.], dtype=torch.float64)).tolist()]
    [1.0, -0.3333, -0.3333, -0.3333]
    """

    single: Literal["drop", "zero"] = "drop"
    """What happens to a group of one; it has no others, so its reward cannot stand alone."""

    def __call__(self, rewards: Float64[Tensor, "n"]) -> Float64[Tensor, "n"] | None:
        """Center against the other responses; a flat group gets exactly 0."""
        n = len(rewards)
        if n == 1:
            return _without_baseline(rewards, self.single)
        return torch.zeros_like(rewards) if is_flat(rewards) else (rewards - rewards.mean()) * (n / (n - 1))
