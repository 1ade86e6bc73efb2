"""SAPO: a soft gate in the place of the clip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import RULES

LEAST_TAU, MOST_TAU = 1e-7, 1e3
"""Of the gate's steepness; at the least it is open for every ratio below a million."""


@RULES.register("sapo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SAPO:
    """``A (4 / tau) sigmoid(tau (r - 1))``: slope 1 at ratio 1, fading on both sides (arXiv:2511.20347).

    The gradient is ``4 s (1 - s) r A`` with s the sigmoid. Far out it fades to nothing, pull-back too: in float32 s is
    1 from ``tau (r - 1) = 17`` on. Negative advantages have the steeper gate. The paper averages over each response's
    tokens, then over responses (``seq-mean-token-mean``). Input and output ``[T]``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.0, log(1.3), log(5), log(100)], advantage=[1.0, -1.0, -1.0, 1.0])
    >>> out = SAPO()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> [round(x, 4) for x in logp.grad.tolist()], out.active.tolist()
    ([1.0, -1.2683, -0.2911, 0.0], [True, True, True, False])
    """

    tau_positive: float = 1.0
    """Steepness of the gate where ``A > 0``."""
    tau_negative: float = 1.05
    """The same where ``A <= 0``."""

    traits: ClassVar[Traits] = Traits(keeps_pull_back=False)

    def __post_init__(self) -> None:
        for name in ("tau_positive", "tau_negative"):
            if not LEAST_TAU <= (tau := getattr(self, name)) <= MOST_TAU:
                raise ValueError(
                    f"{name} of sapo must lie in [{LEAST_TAU:g}, {MOST_TAU:g}] (about 1 is usual); got {tau}"
                )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Pass every ratio through the gate of its sign."""
        tau = torch.where(tokens.advantage > 0, self.tau_positive, self.tau_negative)
        gate = torch.sigmoid(tau * (log_ratio.exp() - 1.0))
        share = gate.detach()
        return Surrogate(tokens.advantage * (4.0 / tau) * gate, (share > 0.0) & (share < 1.0))
