"""Proximal = the running average of the trainer's weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.average import decay_of
from tether.core.proximal import StandsFor, provided
from tether.core.tokens import TokenBatch
from tether.registry import PROXIMALS

MOST_WINDOW = 1_000_000
"""Largest window, in updates."""


@PROXIMALS.register("ewma")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class EWMAProximal:
    """The log-probabilities under an exponential average of the trainer's weights: PPO-EWMA (arXiv:2110.00641).

    The average moves after every update (arithmetic in ``core.average``), so the proximal policy trails the current one
    by ``decay / (1 - decay)`` updates, about as old as the data. The revised form (arXiv:2605.12070) sets the decay
    from the staleness window, masks ``proximal / behavior`` to a band (``icepop`` with ``form = "mask"``,
    ``alpha = 0.2``) and resets the average to the current weights where too few tokens keep a gradient
    (``reset_below = 0.9``). One more forward pass a batch, and one more copy of the weights. ``[T] -> [T]``.

    >>> import torch
    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.5], advantage=[1.0])
    >>> EWMAProximal()(replace(tokens, logp_average=torch.tensor([0.2])), logp.detach())
    tensor([0.2000])
    """

    decay: float | None = None
    """How much the past counts at each update, in (0, 1); none: from the window."""
    window: int = 8
    """How stale the data are at most, in updates: decay = window / (window + 2). Not read where a decay is given."""
    reset_below: float = 0.0
    """Reset the average after an update in which fewer than this share of the tokens kept a gradient; 0 for never."""

    stands_for: ClassVar[StandsFor] = "old"
    inputs: ClassVar[tuple[str, ...]] = ("logp_average",)

    def __post_init__(self) -> None:
        if self.decay is not None and not 0.0 < self.decay < 1.0:  # 0 is the current policy itself: ratio 1
            raise ValueError(f"decay of ewma must lie in (0, 1) (0.8 is usual); got {self.decay}")
        if not 1 <= self.window <= MOST_WINDOW:
            raise ValueError(f"window of ewma must lie in 1 .. {MOST_WINDOW} (8 is usual); got {self.window}")
        if not 0.0 <= self.reset_below <= 1.0:
            raise ValueError(f"reset_below of ewma must lie in [0, 1] (0.9 is usual); got {self.reset_below}")

    @property
    def beta(self) -> float:
        """The decay that is used."""
        return decay_of(self.window) if self.decay is None else self.decay

    def resets(self, surviving: float) -> bool:
        """Whether an update with this surviving fraction (``core.average``) resets the average."""
        return surviving < self.reset_below

    def __call__(self, tokens: TokenBatch, logp: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """The log-probabilities under the average."""
        return provided(tokens.logp_average, "logp_average")
