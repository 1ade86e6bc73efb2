"""VESPO: REINFORCE with a smooth weight on the response's product ratio."""

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

MOST = 100.0
"""Largest exponent or rate of the weight."""
FADED = 1e-30
"""A weight below counts as none, long before float32 does."""


@RULES.register("vespo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class VESPO:
    """REINFORCE by a shaped weight ``W^k e^(rate (1 - W))``, W the product of the response's ratios.

    VESPO (arXiv:2602.10693): ``sg[phi(W)] A log pi``. ``phi(1) = 1``; it rises up to ``W = k / rate`` and then fades,
    pull-back too. Defaults are those of the authors' code and of TRL. At level ``product`` alone: W is the sum of log-
    ratios, guarded, then ``exp``. TRL averages over tokens (``token-mean``). A weight beside it multiplies phi, whereas
    TRL puts it into W. Input and output ``[T]``; the gradient is ``A phi``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(0.5), log(1.5)], advantage=[1.0, -1.0])
    >>> out = VESPO()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> [round(x, 4) for x in logp.grad.tolist()]
    [1.1204, -1.2416]
    """

    k_positive: float = 2.0
    """Exponent where ``A >= 0``."""
    rate_positive: float = 3.0
    """How fast the weight fades where ``A >= 0``."""
    k_negative: float = 3.0
    """Exponent where ``A < 0``."""
    rate_negative: float = 2.0
    """How fast the weight fades where ``A < 0``."""

    traits: ClassVar[Traits] = Traits(level="product", keeps_pull_back=False)

    def __post_init__(self) -> None:
        for name in ("k_positive", "rate_positive", "k_negative", "rate_negative"):
            if not 0 <= (got := getattr(self, name)) <= MOST:
                raise ValueError(f"{name} of vespo must lie in [0, {MOST:g}] (2 or 3 is usual); got {got}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Weigh every token by phi of its response."""
        upwards = tokens.advantage >= 0
        k = torch.where(upwards, self.k_positive, self.k_negative)
        rate = torch.where(upwards, self.rate_positive, self.rate_negative)
        at = log_ratio.detach()
        phi = (k * at - rate * at.expm1()).exp()
        active = phi > FADED
        return Surrogate(torch.where(active, phi, 0.0) * tokens.advantage * policy.logp, active)
