"""q as a number of nats (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.statistics import Statistic, Statistics
from tether.core.tokens import TokenBatch
from tether.registry import SCALES


@SCALES.register("absolute")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Absolute:
    """A q that does not follow the batch (ours, not in the paper): ``q = value``. ``[T] -> []``.

    Not batch-relative: when all mismatch grows, more tokens contract, and further, where the quantile leaves every
    contraction as it was. More than a tenth of the tokens may be gated.

    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.1, -0.2], advantage=[1.0, 1.0])
    >>> Absolute(value=0.03)(tokens, Statistics({}))
    tensor(0.0300)
    """

    value: float
    """q in nats; the quantile of a healthy run lies about 0.02 to 0.03."""

    needs: ClassVar[tuple[Statistic, ...]] = ()
    inputs: ClassVar[tuple[str, ...]] = ()
    is_per_token: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.value <= LOG_RATIO_LIMIT:
            raise ValueError(
                f"value of the absolute scale must lie in (0, {LOG_RATIO_LIMIT:g}] nats (0.03 is usual); "
                f"got {self.value}"
            )

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, ""]:
        """The number, on the tokens' device."""
        return torch.full((), self.value, device=tokens.trainable.device)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q."""
        return {"sat/q": self.value}
