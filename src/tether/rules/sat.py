"""SAT: PPO's clip, contracted on the tokens with the largest mismatch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.ratio import Edge
from tether.core.rule import Kernel, Mark, PolicyTokens, Surrogate
from tether.core.statistics import AbsoluteQuantile, Statistic, Statistics
from tether.core.surrogate import Hill, capped, ceiling, check_radii, effective_radius, floored
from tether.core.tokens import TokenBatch
from tether.registry import KERNELS, RULES


@RULES.register("sat")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SAT:
    """Staleness-adaptive trust region: PPO's clip whose radius contracts where ``|d| > q`` (arXiv:2607.18722).

    ``d = sg[log_ratio]``; q is the ``quantile`` of ``|d|`` over the scope (Eq. 3.3); the gate is
    ``q > 0 and |d| > q`` (Eq. 3.4, blank in the source and restored from its text); on a gated token the side on
    which it has moved contracts, by ``psi(|d|; q)`` (Eq. 3.2): upper end ``1 + epsilon_high psi`` if d > 0, lower end
    ``1 - epsilon_low psi`` if d < 0. The other end is out of reach, so only the end that ``min`` can meet is computed.
    The objective is ``min(r A, clip(r) A)`` over that interval (Eq. 3.5-3.6). q, gate and radii carry no gradient.
    Ungated tokens, and all tokens if q = 0, are PPO's to the last bit. Input and output ``[T]``.

    With q = 0.15 a token at d = 0.18 is gated and its upper end 1.2 becomes 1.0820:

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.18], advantage=[1.0])
    >>> out = SAT()(logp, PolicyTokens(logp), tokens, Statistics({AbsoluteQuantile(0.9): torch.tensor(0.15)}))
    >>> round(out.objective.item(), 6), out.active.tolist()
    (1.081967, [False])
    """

    epsilon_low: float = 0.2
    """Radius below 1 of an ungated token."""
    epsilon_high: float = 0.2
    """Radius above 1 of an ungated token."""
    quantile: float = 0.9
    """Share of the scope's tokens that the gate leaves alone; fewer than 1 / (1 - quantile) tokens are never gated."""
    kernel: Kernel = field(default=Hill(), metadata={"registry": KERNELS})
    """How a gated radius contracts."""
    dual_clip: float | None = None
    """As in ``ppo``, applied after SAT."""
    enabled: bool = True
    """False is PPO with the same radii, bit for bit."""

    reads: ClassVar[Edge] = "clipped"

    def __post_init__(self) -> None:
        check_radii("sat", self.epsilon_low, self.epsilon_high, self.dual_clip)
        AbsoluteQuantile(self.quantile)  # refuses a level outside (0, 1]

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """The quantile of |d|."""
        return (AbsoluteQuantile(self.quantile),) if self.enabled else ()

    @property
    def keeps_pull_back(self) -> bool:
        """Without the dual clip."""
        return self.dual_clip is None

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Lower the ceiling of gated tokens, then clip."""
        gain = log_ratio.exp() * tokens.advantage
        plain = ceiling(tokens.advantage, (1.0 - self.epsilon_low, 1.0 + self.epsilon_high))
        if not self.enabled:
            return floored(capped(gain, plain), tokens.advantage, self.dual_clip)
        q = stats[AbsoluteQuantile(self.quantile)].detach()
        q = torch.where(q > 0, q, math.inf)
        u = log_ratio.detach().abs()
        gate = u > q
        psi = self.kernel(u, q)
        contraction = torch.maximum(psi, u.le_(q))  # 1 where ungated; a select by a random mask takes twice as long
        # from A, which is ratio 1, towards PPO's ceiling: at contraction 1 it is that ceiling to the last bit
        out = capped(gain, torch.lerp(tokens.advantage, plain, contraction))
        marks = {
            "sat/gate_fraction": Mark(gate, tokens.trainable),
            "sat/newly_cut_fraction": Mark((gain.detach() <= plain) & ~out.active, tokens.trainable),
            "sat/mean_contraction": Mark(psi, gate),
        }
        return floored(out._replace(marks=marks), tokens.advantage, self.dual_clip)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q and the one pair of radii that would give the same gradient."""
        if not self.enabled:
            return {}
        q = float(stats[AbsoluteQuantile(self.quantile)])
        low, high = effective_radius(q, (self.epsilon_low, self.epsilon_high), self.kernel)
        return {"sat/q": q, "sat/effective_radius_low": low, "sat/effective_radius_high": high}
