"""M2PO: PPO's clip between bounds that hold the step's second moment to a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.second_moment import SecondMomentLimit
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS, clipped
from tether.core.tokens import TokenBatch
from tether.registry import RULES


@RULES.register("m2po")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class M2PO:
    """Clip between ``e^-tau`` and ``e^tau``, one tau for all tokens of the scope, as its authors' code does.

    M2PO (arXiv:2510.01161) holds the mean of d^2 over the tokens that have moved away from the data to ``budget``:
    tau is the largest of their |d| such that the mean is within it if every d^2 is capped at tau^2 (0 if none is). A
    scope within the budget is not clipped at all. The interval is never narrower than ``floor``. Input and output
    ``[T]``; the gradient of a kept token is ``A r``, of a cut one 0.

    With tau = 0.5 the upper end is e^0.5 = 1.6487; one at r = 1.8 loses its gradient:

    >>> import torch
    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(1.8), 0.5], advantage=[1.0, 1.0])
    >>> stats = Statistics({SecondMomentLimit(budget=0.04, of="capped"): torch.tensor(0.5)})
    >>> out = M2PO()(logp, PolicyTokens(logp), tokens, stats)
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.6487, 1.6487], [False, True])
    """

    budget: float = 0.04
    """Most that the second moment may be, in nats squared."""
    floor: tuple[float, float] = (0.7, 1.5)
    """Ratios that the interval holds at least."""

    def __post_init__(self) -> None:
        SecondMomentLimit(budget=self.budget, of="capped")  # refuses a budget out of range
        low, high = self.floor
        if not (0 <= low <= 1 <= high <= MOST_RADIUS):
            raise ValueError(
                f"floor of m2po must be an interval around 1, at most {MOST_RADIUS:g} (0.7, 1.5 is usual); got {low}, "
                f"{high}"
            )

    @property
    def traits(self) -> Traits:
        """The limit on |d|, over the ratio that is clipped."""
        return Traits(needs=(SecondMomentLimit(budget=self.budget, of="capped"),))

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip every token's ratio between the bounds of the scope."""
        return clipped(log_ratio, tokens.advantage, self.bounds(stats))

    def bounds(self, stats: Statistics) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Lower and upper end of the interval; 0 and as good as none where the budget holds by itself."""
        tau = stats[SecondMomentLimit(budget=self.budget, of="capped")].detach()
        low, high = self.floor
        return (-tau).exp().clamp(max=low), tau.exp().clamp(min=high, max=MOST_RADIUS)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """The interval; without an upper end if the budget holds by itself."""
        low, high = (float(bound) for bound in self.bounds(stats))
        return {"m2po/low": low, **({"m2po/high": high} if high < MOST_RADIUS else {})}
