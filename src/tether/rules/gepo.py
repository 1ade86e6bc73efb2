"""GEPO: REINFORCE weighed against what the behavior policy expects of the whole group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.group_expectation import GroupExpectation
from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch, per_sequence_sum, response_length
from tether.registry import RULES


@RULES.register("gepo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GEPO:
    """REINFORCE by ``pi(y) / E``, one expectation for the whole group: ``E = sum_j mu(y_j)^2 / sum_j mu(y_j)``.

    Group expectation policy optimization (arXiv:2508.17850): ``sg[w] A log pi`` with ``w = pi(y) / E``.
    The denominator is shared by the group and never tiny, at the price of a weight that is not 1 on-policy: there it is
    ``mu(y) / E``. Probabilities are those of whole responses, at level ``product`` alone, always against the behavior
    policy; ``log w`` is guarded as a log-ratio is. Nothing is clipped; the mean over responses of token means (``seq-
    mean-token-mean``) has no bias by length. Input and output ``[T]``; the gradient is ``A w``.

    Two answers, probable to 0.2 and 0.1 now, to 0.1 and 0.3 when sampled: E = (.01 + .09) / .4 = 0.25:

    >>> from dataclasses import replace
    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(0.2), log(0.1)], advantage=[1.0, 1.0])
    >>> tokens = replace(tokens, logp_behavior=torch.tensor([0.1, 0.3]).log(), group=torch.tensor([5, 5]))
    >>> from tether.core.statistics import measure
    >>> out = GEPO()(logp, PolicyTokens(logp), tokens, measure([(logp, tokens)], GEPO().traits.needs))
    >>> out.objective.sum().backward()
    >>> logp.grad
    tensor([0.8000, 0.4000])
    """

    by_length: bool = False
    """Whether log-probabilities are means over a response's tokens; the published weight has their sums."""

    @property
    def traits(self) -> Traits:
        """The expectation of every group; the ratio is to the behavior policy whatever the recipe's proximal."""
        return Traits(reads="total", level="product", needs=(GroupExpectation(by_length=self.by_length),))

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Weigh every token by its response's probability against the group's expectation."""
        groups, log_expectation = stats[GroupExpectation(by_length=self.by_length)].detach()
        row = torch.searchsorted(groups, tokens.group.double()).clamp(max=len(groups) - 1)
        logp = per_sequence_sum(policy.logp.detach().double(), tokens)
        if self.by_length:
            logp = logp / response_length(tokens).double()
        log_weight = (logp - log_expectation.index_select(0, row)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        weight = log_weight.exp().to(policy.logp.dtype)
        return Surrogate(weight * tokens.advantage * policy.logp, torch.ones_like(tokens.trainable))
