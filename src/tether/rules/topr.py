"""TOPR: REINFORCE whose weight is tapered on tokens that are pushed down."""

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


@RULES.register("topr")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TOPR:
    """Tapered REINFORCE: ``sg[w] A log pi``, ``w = 1`` where ``A > 0``, ``min(r, 1)`` elsewhere (arXiv:2503.14286).

    What is good is learned whatever its ratio, without any correction of where it came from; what is bad is pushed down
    no further once the policy has left it. The paper has one ratio a response, the product: level ``product``; token by
    token is ROLL's form. The sign is the advantage's: the loss does not see the reward. Every token keeps a gradient,
    ``A w``. Input and output ``[T]``.

    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[log(0.5), log(0.5), log(3)], advantage=[1.0, -1.0, -1.0])
    >>> out = TOPR()(logp, PolicyTokens(logp), tokens, Statistics({}))
    >>> out.objective.sum().backward()
    >>> logp.grad
    tensor([ 1.0000, -0.5000, -1.0000])
    """

    traits: ClassVar[Traits] = Traits()

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Taper the weight of tokens with A < 0."""
        tapered = log_ratio.detach().clamp(max=0.0).exp()
        weight = torch.where(tokens.advantage > 0, 1.0, tapered)
        return Surrogate(weight * tokens.advantage * policy.logp, torch.ones_like(tokens.trainable))
