"""IcePop: a weight that is 0 outside a band."""

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


@CORRECTIONS.register("icepop")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class IcePop:
    """Weight ``k`` where ``alpha <= k <= beta``, else 0; detached (arXiv:2510.18855).

    ``k = trainer / engine`` at the weights that sampled: edge ``engine``, which needs old log-probabilities. Without
    them k is ``proximal / behavior``, edge ``weight``: against an anchor it sees staleness, too. ``form = "mask"`` is 1
    in place of k; a mask may also look at ``pi / behavior``, edge ``total``.

    Blind to the advantage: a token outside the band loses its pull-back as well. Dropped tokens still count in the
    denominator. ``[T] -> [T]``.

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[-1.0, 0.3, 2.0], advantage=[1.0, 1.0, 1.0])
    >>> IcePop()(logp.detach(), PolicyTokens(logp), tokens, Statistics({})).value
    tensor([0.0000, 1.3499, 0.0000])
    """

    alpha: float = 0.5
    """Lower end of the band, in [0, 1)."""
    beta: float = 5.0
    """Upper end of the band, above 1."""
    form: Literal["weight", "mask"] = "weight"
    """Inside the band: the ratio itself, or 1."""
    edge: Literal["weight", "engine", "total"] = "weight"
    """Which ratio k is."""
    literal: bool = False
    """True: beside a ratio that is ``pi / behavior`` already, as the SAT paper writes it; counts the engine twice."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha < 1.0:
            raise ValueError(f"alpha of icepop must lie in [0, 1) (0.5 is usual); got {self.alpha}")
        if not 1.0 < self.beta <= MOST_RATIO:
            raise ValueError(f"beta of icepop must lie in (1, {MOST_RATIO:g}] (5 is usual); got {self.beta}")
        if self.form == "weight" and self.edge == "total":
            raise ValueError(
                "edge of icepop must not be 'total' where form is 'weight', since the clipped ratio would be counted "
                f"twice; got {self.edge!r}: set form = 'mask', or edge = 'engine' or 'weight'"
            )
        if self.literal and (self.form, self.edge) != ("weight", "engine"):
            raise ValueError(
                "literal of icepop must go with form = 'weight' and edge = 'engine'; "
                f"got {self.form!r} and {self.edge!r}: set them, or leave literal out"
            )

    @property
    def traits(self) -> Traits:
        """A token outside the band is dropped, whichever way it moves."""
        return Traits(
            reads=self.edge,
            level="token",
            inputs=("logp_old",) if self.edge == "engine" else (),
            keeps_pull_back=False,
            is_mask=self.form == "mask",
            is_literal=self.literal,
        )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Drop what lies outside the band."""
        k = log_ratio.detach().exp()
        keep = ((k >= self.alpha) & (k <= self.beta)).to(k.dtype)
        return Weight(keep if self.form == "mask" else k * keep)
