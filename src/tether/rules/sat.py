"""SAT: PPO's clip, contracted on the tokens with the largest mismatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from jaxtyping import Float
from torch import Tensor

from tether.core.kernels import Hill
from tether.core.rule import Kernel, PolicyTokens, Scale, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import Contraction, check_radii, clipped, contracted, effective_radius, floored
from tether.core.tokens import TokenBatch
from tether.registry import KERNELS, RULES, SCALES
from tether.scales.quantile import Quantile


@RULES.register("sat")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SAT:
    """Staleness-adaptive trust region: PPO's clip whose radius contracts where ``|d| > q`` (arXiv:2607.18722).

    ``d = sg[log_ratio]``; q is the 0.9-quantile of ``|d|`` over the scope (Eq. 3.3); the gate is
    ``q > 0 and |d| > q`` (Eq. 3.4, blank in the source and restored from its text); on a gated token the side on
    which it has moved contracts, by ``psi(|d|; q)`` (Eq. 3.2): upper end ``1 + epsilon_high psi`` if d > 0, lower end
    ``1 - epsilon_low psi`` if d < 0. The other end is out of reach, so only the end that ``min`` can meet is computed.
    The objective is ``min(r A, clip(r) A)`` over that interval (Eq. 3.5-3.6). q, gate and radii carry no gradient.
    Ungated tokens, and all tokens if q = 0, are PPO's to the last bit. Input and output ``[T]``.

    q is the paper's quantile unless ``scale`` says otherwise (``tether rules``: scales).

    With q = 0.15 a token at d = 0.18 is gated and its upper end 1.2 becomes 1.0820:

    >>> import torch
    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import AbsoluteQuantile
    >>> tokens, logp = tokens_of(log_ratio=[0.18], advantage=[1.0])
    >>> stats = Statistics({AbsoluteQuantile(0.9): torch.tensor(0.15)})
    >>> out = SAT()(logp, PolicyTokens(logp), tokens, stats)
    >>> round(out.objective.item(), 6), out.active.tolist()
    (1.081967, [False])
    """

    epsilon_low: float = 0.2
    """Radius below 1 of an ungated token."""
    epsilon_high: float = 0.2
    """Radius above 1 of an ungated token."""
    scale: Scale = field(default=Quantile(), metadata={"registry": SCALES})
    """How q is found."""
    kernel: Kernel = field(default=Hill(), metadata={"registry": KERNELS})
    """How a gated radius contracts."""
    dual_clip: float | None = None
    """As in ``ppo``, applied after SAT."""
    enabled: bool = True
    """False is PPO with the same radii, bit for bit."""

    def __post_init__(self) -> None:
        check_radii("sat", self.epsilon_low, self.epsilon_high, self.dual_clip)

    @property
    def traits(self) -> Traits:
        """The statistics of its scale; pull-back is kept, but for the dual clip."""
        keeps = self.dual_clip is None
        if not self.enabled:
            return Traits(keeps_pull_back=keeps)
        return Traits(needs=self.scale.needs, inputs=self.scale.inputs, keeps_pull_back=keeps)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Lower the ceiling of gated tokens, then clip."""
        bounds = (1.0 - self.epsilon_low, 1.0 + self.epsilon_high)
        if not self.enabled:
            return clipped(log_ratio, tokens.advantage, bounds, self.dual_clip)
        q = self.scale(tokens, stats)
        out = contracted(log_ratio, tokens, bounds, Contraction(log_ratio.detach().abs(), q, self.kernel))
        return floored(out, tokens.advantage, self.dual_clip)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q, and where it is one number the one pair of radii that would give the same gradient."""
        if not self.enabled:
            return {}
        readings = self.scale.readings(stats)
        if (q := readings.get("sat/q")) is None:
            return readings
        low, high = effective_radius(q, (self.epsilon_low, self.epsilon_high), self.kernel)
        return {**readings, "sat/effective_radius_low": low, "sat/effective_radius_high": high}
