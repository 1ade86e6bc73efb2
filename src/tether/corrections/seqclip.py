"""SeqClip: a mask of whole responses by their geometric-mean ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS

MOST_RATIO = 1e9
"""Largest end of the band: as good as none, since ratios end at e^20 = 4.85e8."""


@CORRECTIONS.register("seqclip")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SeqClip:
    """Keep a response iff ``alpha <= rho_b <= beta``, ``rho_b = exp(mean_t log-ratio)``, the geometric mean.

    SeqClip (Tencent Hy research, 2026, article 100015; described together with GradLoc). A 0/1 mask at level
    ``sequence`` whatever the recipe's, blind to the advantage: a response that moves back is dropped as well. Beside
    GSPO's clip it bounds the same number, and its narrow band leaves that clip nothing. ``[T] -> [T]``.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.004, 0.006], advantage=[1.0, 1.0])
    >>> SeqClip()(logp.detach(), PolicyTokens(logp), tokens, Statistics({})).value
    tensor([1., 0.])
    """

    alpha: float = 0.995
    """Lower end of the band, in [0, 1)."""
    beta: float = 1.005
    """Upper end of the band, above 1."""
    closed: bool = True
    """Whether a response exactly at an end is kept."""
    edge: Literal["total", "weight", "clipped"] = "total"
    """Staleness and mismatch together, what the proximal stands apart from the engine, or what the clip reads."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha < 1.0:
            raise ValueError(f"alpha of seqclip must lie in [0, 1) (0.995 is usual); got {self.alpha}")
        if not 1.0 < self.beta <= MOST_RATIO:
            raise ValueError(f"beta of seqclip must lie in (1, {MOST_RATIO:g}] (1.005 is usual); got {self.beta}")

    @property
    def traits(self) -> Traits:
        """A response outside the band is dropped, whichever way it moves."""
        return Traits(reads=self.edge, level="sequence", keeps_pull_back=False, is_mask=True)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Drop responses outside the band."""
        rho = log_ratio.detach().exp()
        above, below = (rho >= self.alpha, rho <= self.beta) if self.closed else (rho > self.alpha, rho < self.beta)
        return Weight((above & below).to(rho.dtype))
