"""GMPO: the geometric mean of a response's clipped ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch, per_sequence_mean
from tether.registry import RULES


@RULES.register("gmpo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GMPO:
    """Geometric mean of clipped token ratios: ``A rho`` with ``rho = exp(mean_t x_t)``, x a token's clipped log-ratio.

    GMPO (arXiv:2507.20673): ``x_t = min(d_t, log_clip)`` where ``A > 0``, ``max(d_t, -log_clip)`` where ``A < 0``.
    Every token carries the objective of its response and its own gradient ``A rho``, none if it was clipped; so under
    ``seq-mean-token-mean`` the loss is the paper's, the mean over responses of ``-A rho``. All tokens of a response
    enter rho, hence a weight or mask on single tokens is refused. Input and output ``[T]``.

    The second of three tokens is clipped to 0.4: rho = e^0.1 = 1.1052:

    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.1, 0.6, -0.2], advantage=[1.0, 1.0, 1.0], sequence=[0, 0, 0])
    >>> out = GMPO()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([1.1052, 1.1052, 1.1052], [True, False, True])
    """

    log_clip: float = 0.4
    """How far a token's log-ratio may go outwards, in nats."""

    traits: ClassVar[Traits] = Traits(level="token", mixes_tokens=True)

    def __post_init__(self) -> None:
        if not 0 < self.log_clip <= LOG_RATIO_LIMIT:
            raise ValueError(
                f"log_clip of gmpo must lie in (0, {LOG_RATIO_LIMIT:g}] (0.4 is usual); got {self.log_clip}"
            )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Clip every token's log-ratio, average over the response, hand each token its own gradient."""
        at = log_ratio.detach()
        within = torch.where(tokens.advantage > 0, at.clamp(max=self.log_clip), at.clamp(min=-self.log_clip))
        active = within == at
        rho = per_sequence_mean(within, tokens).exp()
        own_gradient = torch.where(active, log_ratio - at, 0.0)
        return Surrogate(rho * tokens.advantage * (1.0 + own_gradient), active)
