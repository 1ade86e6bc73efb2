"""SAT across edges: mismatch read between other policies than the ratio that is clipped (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.kernels import Hill
from tether.core.ratio import edge_log_ratio
from tether.core.rule import Kernel, PolicyTokens, Scale, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import Contraction, check_radii, contracted, floored
from tether.core.tokens import TokenBatch
from tether.registry import KERNELS, RULES, SCALES
from tether.scales.quantile import Quantile


@RULES.register("sat-edge")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SATEdge:
    """SAT whose d is read on an edge of its own, which makes it truly per token (ours, not in the paper).

    As ``sat`` (arXiv:2607.18722, Eq. 3.1-3.6) with ``r = pi / proximal`` and ``d = sg[log-ratio of mismatch]``: q is
    the quantile of ``|d|``, the gate is ``|d| > q > 0``, and on a gated token the upper end is
    ``1 + epsilon_high psi`` if d > 0, the lower end ``1 - epsilon_low psi`` if d < 0. Input and output ``[T]``.

    Where d and r are one number, SAT's gradient is that of PPO with one pair of radii (``adaptive-radius``). Here two
    tokens with the same r may be kept and cut, because one of them is further from the data than the other.

    The side is that of d, as Eq. 3.2 ties u+ and u- to its sign, not that of r. The two can differ: with d < 0 < log r
    a larger r brings the token back towards where d is measured from, and its upper end stays PPO's.

    With proximal ``rollout`` and mismatch ``total`` it is ``sat``; mismatch ``weight`` is 0 there, and the rule PPO.

    The same ratio twice, of tokens that stand 0.18 above the behavior policy and 0.05 below it:

    >>> import torch
    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import AbsoluteQuantile
    >>> tokens, logp = tokens_of(log_ratio=[0.1, 0.1], advantage=[1.0, 1.0])
    >>> tokens = replace(tokens, logp_behavior=torch.tensor([-0.08, 0.15]))
    >>> stats = Statistics({AbsoluteQuantile(0.9): torch.tensor(0.15)})
    >>> out = SATEdge(mismatch="total")(logp, PolicyTokens(logp), tokens, stats)
    >>> [round(x, 6) for x in out.objective.tolist()], out.active.tolist()
    ([1.081967, 1.105171], [False, True])
    """

    mismatch: Literal["total", "update", "engine", "weight"] = "total"
    """The edge that d is read on; ``update`` and ``engine`` need old log-probs."""
    epsilon_low: float = 0.2
    """Radius below 1 of an ungated token."""
    epsilon_high: float = 0.2
    """Radius above 1 of an ungated token."""
    scale: Scale = field(default=Quantile(), metadata={"registry": SCALES})
    """How q is found, over ``|d|`` of the edge ``mismatch``."""
    kernel: Kernel = field(default=Hill(), metadata={"registry": KERNELS})
    """How a gated radius contracts."""
    dual_clip: float | None = None
    """As in ``ppo``, applied after SAT."""

    def __post_init__(self) -> None:
        check_radii("sat-edge", self.epsilon_low, self.epsilon_high, self.dual_clip)

    @property
    def traits(self) -> Traits:
        """Reads the clipped ratio, measures the mismatch; pull-back is kept, but for the dual clip."""
        old = ("logp_old",) if self.mismatch in ("update", "engine") else ()
        return Traits(
            level="token",
            needs=self.scale.needs,
            measures=self.mismatch,
            inputs=(*self.scale.inputs, *old),
            keeps_pull_back=self.dual_clip is None,
        )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Lower the ceiling of gated tokens whose mismatch lies on the side that the advantage pushes to, then clip."""
        d = edge_log_ratio(self.mismatch, policy.logp.detach(), tokens, "token")
        meets = (d > 0) == (tokens.advantage > 0)
        by = Contraction(d.abs(), self.scale(tokens, stats), self.kernel, meets)
        bounds = (1.0 - self.epsilon_low, 1.0 + self.epsilon_high)
        return floored(contracted(log_ratio, tokens, bounds, by), tokens.advantage, self.dual_clip)

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q; there is no one pair of radii with the same gradient."""
        return self.scale.readings(stats)
