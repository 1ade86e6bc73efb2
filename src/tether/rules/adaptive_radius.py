"""Adaptive radius: PPO with the one pair of radii to which SAT amounts (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.kernels import Hill
from tether.core.rule import Kernel, Mark, PolicyTokens, Scale, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import capped, ceiling, check_radii, effective_radii, effective_radius, floored
from tether.core.tokens import TokenBatch
from tether.registry import KERNELS, RULES, SCALES
from tether.scales.quantile import Quantile


@RULES.register("adaptive-radius")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveRadius:
    """PPO whose radii are SAT's effective ones (ours, not in the paper): the ablation that SAT must be compared to.

    With q the same scale and psi the same kernel as in ``sat`` (arXiv:2607.18722):

    ``u* = max(q, root of e^u - 1 = epsilon_high psi(u; q))``, upper end ``min(e^u*, 1 + epsilon_high)``, and below 1
    likewise with ``1 - e^-u``. Every token of the scope has these two ends; q = 0 gives PPO's. Objective
    ``min(r A, clip(r) A)``. Input and output ``[T]``; q and radii carry no gradient and stay on the device.

    The gradient is that of ``sat``: a token's own contraction changes what the loss reads, never which tokens are kept.
    A run that differs from ``sat``'s by more than rounding shows a fault.

    At q = 0.02 every token is held at 1.0405; PPO would hold it at 1.2:

    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import AbsoluteQuantile
    >>> tokens, logp = tokens_of(log_ratio=[0.05, 0.03], advantage=[1.0, 1.0])
    >>> stats = Statistics({AbsoluteQuantile(0.9): torch.tensor(0.02)})
    >>> out = AdaptiveRadius()(logp, PolicyTokens(logp), tokens, stats)
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.0405, 1.0305], [False, True])
    """

    epsilon_low: float = 0.2
    """Largest radius below 1."""
    epsilon_high: float = 0.2
    """Largest radius above 1."""
    scale: Scale = field(default=Quantile(), metadata={"registry": SCALES})
    """How q is found; one number for all tokens."""
    kernel: Kernel = field(default=Hill(), metadata={"registry": KERNELS})
    """How a gated radius would contract."""
    dual_clip: float | None = None
    """As in ``ppo``."""

    def __post_init__(self) -> None:
        check_radii("adaptive-radius", self.epsilon_low, self.epsilon_high, self.dual_clip)
        if self.scale.is_per_token:
            raise ValueError(
                "scale of adaptive-radius must give one q for all tokens, because it has one pair of radii; got "
                f"{SCALES.name_of(self.scale)}: use rule 'sat' with it, or a scale such as quantile"
            )

    @property
    def traits(self) -> Traits:
        """The statistics of its scale; pull-back is kept, but for the dual clip."""
        return Traits(needs=self.scale.needs, inputs=self.scale.inputs, keeps_pull_back=self.dual_clip is None)

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip every token's ratio into the one interval."""
        plain = (1.0 - self.epsilon_low, 1.0 + self.epsilon_high)
        q = self.scale(tokens, stats).to(log_ratio.dtype)
        low, high = effective_radii(q, (self.epsilon_low, self.epsilon_high), self.kernel)
        # a token at q itself is not gated, however its ratio is rounded
        lower = torch.minimum((1.0 - low).to(q.dtype), (-q).exp().clamp(min=plain[0]))
        upper = torch.maximum((1.0 + high).to(q.dtype), q.exp().clamp(max=plain[1]))
        gain, most = log_ratio.exp() * tokens.advantage, ceiling(tokens.advantage, plain)
        out = capped(gain, ceiling(tokens.advantage, (lower, upper)))
        cut = Mark((gain.detach() <= most) & ~out.active, tokens.trainable)
        return floored(out._replace(marks={"sat/newly_cut_fraction": cut}), tokens.advantage, self.dual_clip)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q and the radii."""
        readings = self.scale.readings(stats)
        low, high = effective_radius(readings["sat/q"], (self.epsilon_low, self.epsilon_high), self.kernel)
        return {**readings, "sat/effective_radius_low": low, "sat/effective_radius_high": high}
