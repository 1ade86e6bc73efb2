"""DRPO: a smooth pull towards the data, measured in probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import MOST_RADIUS
from tether.core.tokens import TokenBatch
from tether.registry import RULES

LEAST_DELTA = 1e-6


@RULES.register("drpo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DRPO:
    """Penalize the change of probability: ``r A - |A| mu (r - 1)^2 / (2 delta)``, mu the proximal (arXiv:2606.09821).

    Only ``r = pi / mu`` has a gradient, which is ``A r w`` with ``w = 1 - sign(A (r - 1)) |pi - mu| / delta``: it fades
    as an outward token comes to ``|pi - mu| = delta``, is reversed beyond, and grows on the way back. No token is cut.
    Token by token; input and output ``[T]``.

    Paper and code set delta = 12.5, with which w lies in 0.92 .. 1.08: in effect importance-weighted REINFORCE. The
    derivation speaks of a trust region in probability, that is 0.05 to 0.2.

    A token that rose from 0.5 to 0.68, beyond delta = 0.15, is pushed back:

    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.0], advantage=[1.0])
    >>> tokens = replace(tokens, logp_proximal=torch.tensor([0.5]).log())
    >>> logp = torch.tensor([0.68]).log().requires_grad_()
    >>> out = DRPO(delta=0.15)(logp - tokens.logp_proximal, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> round(out.objective.item(), 4), round(logp.grad.item(), 4)
    (1.144, -0.272)
    """

    delta: float = 12.5
    """The change of probability at which an outward token's gradient is 0."""

    traits: ClassVar[Traits] = Traits(level="token")

    def __post_init__(self) -> None:
        if not LEAST_DELTA <= self.delta <= MOST_RADIUS:
            raise ValueError(
                f"delta of drpo must lie in [{LEAST_DELTA:g}, {MOST_RADIUS:g}] (12.5 in the paper, 0.05 to 0.2 for a "
                f"trust region); got {self.delta}"
            )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Penalize every token by its own probability."""
        r, advantage = log_ratio.exp(), tokens.advantage
        stiffness = advantage.abs() * tokens.logp_proximal.exp() / (2.0 * self.delta)
        return Surrogate(
            objective=r * advantage - stiffness * (r - 1.0).square(), active=torch.ones_like(tokens.trainable)
        )
