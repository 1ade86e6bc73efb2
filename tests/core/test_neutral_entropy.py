"""A rule may read the policy's entropy; that of untrainable tokens never matters either."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator, TokenMean
from tether.core.algorithm import Algorithm
from tether.core.examples import tokens_of
from tether.core.loss import policy_loss
from tether.core.ratio import Ratio
from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.proximal.rollout import RolloutProximal


class ReadsEntropy:
    """Adds a share of the entropy to the objective."""

    traits = Traits()

    def __call__(self, log_ratio, policy, tokens, stats):
        objective = log_ratio.exp() * tokens.advantage + 0.1 * policy.entropy
        return Surrogate(objective, torch.ones_like(tokens.trainable))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), 1e30])
def test_entropy_of_an_untrainable_token_reaches_no_rule(poison):
    algorithm = Algorithm(
        proximal=RolloutProximal(),
        level="token",
        rule=ReadsEntropy(),
        aggregation=TokenMean(),
        advantage=GRPO(),
        entropy=0.5,
    )
    tokens, logp = tokens_of(log_ratio=[0.1, 0.2], advantage=[1.0, 1.0])
    tokens = replace(tokens, trainable=torch.tensor([True, False]))
    counts, stats = Denominator(num_tokens=1, num_sequences=1), {Ratio("clipped", "token"): Statistics({})}
    losses, gradients = [], []
    for value in (0.3, poison):
        entropy = torch.tensor([0.3, value], requires_grad=True)
        terms = policy_loss(PolicyTokens(logp, entropy), tokens, algorithm, stats, counts)
        losses.append(terms.loss.item())
        gradients.append(torch.autograd.grad(terms.loss, (logp, entropy)))
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
