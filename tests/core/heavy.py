"""Heavy-tailed log-ratios, as stale batches have them, and a rule applied to them."""

from __future__ import annotations

import dataclasses
from unittest import mock

import torch
from torch import Tensor

from tether.core import surrogate
from tether.core.examples import tokens_of
from tether.core.rule import PolicyTokens, Rule, Surrogate
from tether.core.statistics import Statistics, measure
from tether.core.tokens import TokenBatch
from tether.rules.sat import SAT

SHAPES = ("student", "laplace", "mixture", "gauss")
ADVANTAGES = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
"""Powers of two: multiplying by them rounds nothing, so which side of an end a token lies on stays exact."""


def log_ratios(shape: str, size: int, *, scale: float, seed: int) -> Tensor:
    """Continuous draws of one shape, float32."""
    torch.manual_seed(seed)
    if shape == "student":
        d = torch.distributions.StudentT(2.0).sample((size,))
    elif shape == "laplace":
        d = torch.distributions.Laplace(0.0, 1.0).sample((size,))
    elif shape == "mixture":
        d = torch.randn(size) * torch.where(torch.rand(size) < 0.9, 0.3, 5.0)
    else:
        d = torch.randn(size)
    return (scale * d).clamp(-20, 20)


def tokens_at(d: Tensor, *, seed: int) -> tuple[TokenBatch, Tensor]:
    """Tokens with these log-ratios and advantages drawn from ADVANTAGES; the current log-probs need gradient."""
    pick = torch.randint(len(ADVANTAGES), d.shape, generator=torch.Generator().manual_seed(seed))
    return tokens_of(log_ratio=d.tolist(), advantage=torch.tensor(ADVANTAGES)[pick].tolist())


def measured(rule: Rule, tokens: TokenBatch, d: Tensor) -> Statistics:
    """What the rule needs, over these tokens."""
    return measure([(d.detach(), tokens)], rule.traits.needs)


def applied(rule: Rule, tokens: TokenBatch, d: Tensor, stats: Statistics | None = None) -> tuple[Surrogate, Tensor]:
    """The rule's answer and the gradient of its sum."""
    leaf = d.detach().clone().requires_grad_()
    out = rule(leaf, PolicyTokens(leaf), tokens, measured(rule, tokens, d) if stats is None else stats)
    out.objective.sum().backward()
    assert leaf.grad is not None
    return out, leaf.grad


def intervals(rule: SAT, tokens: TokenBatch, d: Tensor, stats: Statistics | None = None) -> tuple[Tensor, Tensor]:
    """The ends ``[T]`` at which SAT cuts every token's ratio: below if its advantage is negative, above if positive."""
    ends = []
    for sign in (-1.0, 1.0):
        credited = dataclasses.replace(tokens, advantage=torch.full_like(tokens.advantage, sign))
        with mock.patch("tether.core.surrogate.capped", wraps=surrogate.capped) as spy:
            applied(rule, credited, d, stats or measured(rule, tokens, d))
        ends.append(sign * spy.call_args.args[1])
    return ends[0], ends[1]
