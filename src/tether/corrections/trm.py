"""TRM: a mask of responses in which a single token's divergence exceeds a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.divergences import bernoulli_kl
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch, per_sequence_max
from tether.registry import CORRECTIONS

MOST_DIVERGENCE = 1e9
"""Largest bound, in nats: as good as none, since the floors of the divergence end it below 50."""


@CORRECTIONS.register("trm")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TRM:
    """Trust-region masking: drop a response iff ``max_t D(behavior || current) > delta`` (arXiv:2512.23075).

    The paper's divergence runs over the vocabulary; here it is that of "the sampled token or another", which needs
    nothing more from the engine and is never larger. At ``D = delta`` a response is kept. A 0/1 mask, blind to the
    advantage. ``[T] -> [T]``.

    One response of two tokens; the second went from .5 to .8 (D = .22) and takes the first with it:

    >>> import torch
    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.0] * 3, advantage=[1.0] * 3, sequence=[0, 0, 1])
    >>> tokens = replace(tokens, logp_behavior=torch.tensor([0.5, 0.5, 0.5]).log())
    >>> logp = torch.tensor([0.5, 0.8, 0.55]).log()
    >>> TRM()(logp - tokens.logp_behavior, PolicyTokens(logp), tokens, Statistics({})).value
    tensor([0., 0., 1.])
    """

    delta: float = 0.05
    """Largest divergence of a token in a kept response, in nats."""
    direction: Literal["behavior-current", "current-behavior"] = "behavior-current"
    """``D(behavior || current)``, or the other way round."""

    traits: ClassVar[Traits] = Traits(reads="total", level="token", keeps_pull_back=False, is_mask=True)

    def __post_init__(self) -> None:
        if not 0.0 < self.delta <= MOST_DIVERGENCE:
            raise ValueError(f"delta of trm must lie in (0, {MOST_DIVERGENCE:g}] (0.05 is usual); got {self.delta}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Drop responses with a token that is too far away."""
        first, second = tokens.logp_behavior, policy.logp
        if self.direction == "current-behavior":
            first, second = second, first
        most = per_sequence_max(bernoulli_kl(first, second), tokens)
        return Weight((most <= self.delta).to(log_ratio.dtype))
