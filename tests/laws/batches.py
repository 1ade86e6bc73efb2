"""What the laws are tried on: drawn token batches, and the algorithms that every plug-in takes part in."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator, TokenSum
from tether.core.algorithm import Algorithm
from tether.core.loss import LossTerms, measure_scope, policy_loss
from tether.core.memory import EdgeStatistics
from tether.core.rule import Correction, PolicyTokens, Rule, Scale
from tether.core.tokens import TokenBatch
from tether.corrections.tis import TIS
from tether.proximal.anchor import AnchorProximal
from tether.proximal.rollout import RolloutProximal
from tether.registry import AGGREGATIONS, CORRECTIONS, RULES, SCALES

LEVELS = ("token", "sequence")

Drawn = tuple[TokenBatch, Tensor]
"""Tokens and the current log-probabilities, which need no gradient yet."""


@st.composite
def batches(draw: st.DrawFn, *, spread: float | None = None, advantages: Sequence[float] = (-1.5, -1.0, 0.0, 0.5, 2.0)):
    """Up to 12 responses of 1 to 9 tokens, with prompts, padding and tool output between; |log-ratio| of order spread.

    The proximal policy stands between behavior and current, so that all edges differ; at spread 0 all policies agree.
    """
    lengths = draw(st.lists(st.integers(1, 9), max_size=12))
    wide = draw(st.sampled_from([0.01, 0.1, 0.5, 2.0])) if spread is None else spread
    share = draw(st.sampled_from([0.0, 0.2, 0.6]))
    noise = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    size = (len(sequence),)
    behavior = -3.0 * torch.rand(size, generator=noise)
    proximal = behavior + 0.4 * wide * torch.randn(size, generator=noise)
    logp = proximal + wide * torch.randn(size, generator=noise)
    credit = torch.tensor(advantages)[torch.randint(len(advantages), (len(lengths),), generator=noise)]
    tokens = TokenBatch(
        logp_behavior=behavior,
        logp_proximal=proximal,
        logp_anchor=proximal,
        logp_old=proximal,
        logp_average=proximal,
        advantage=credit[sequence],
        trainable=torch.rand(size, generator=noise) >= share,
        sequence=sequence,
        group=sequence // 2,
        staleness=torch.randint(0, 16, size, generator=noise),
        logp_reference=behavior + 0.1 * torch.randn(size, generator=noise),
        entropy_behavior=torch.rand(size, generator=noise),
        turn=torch.randint(0, 3, size, generator=noise),
    )
    return tokens, logp


def with_proximal(tokens: TokenBatch, algorithm: Algorithm) -> TokenBatch:
    """The tokens as the algorithm's proximal makes them; the drawn proximal stands for anchor, old and average."""
    return dataclasses.replace(tokens, logp_proximal=algorithm.proximal(tokens, tokens.logp_proximal))


REQUIRED = {"seq-mean-token-sum-norm": {"horizon": 8}, "estr": {"threshold": 1.0}, "absolute": {"value": 0.03}}
"""Options of plug-ins that have no default."""


def built(registry, name: str):
    """A plug-in with its default options."""
    return registry.build(name, **REQUIRED.get(name, {}))


def algorithm_of(rule: Rule, *, level: str = "token", corrections: tuple[Correction, ...] = (), **choices) -> Algorithm:
    """The simplest recipe around a rule that multiplies to pi/behavior; gradients are sums over tokens."""
    is_weighted = any(not c.traits.is_mask or c.traits.reads == "weight" for c in corrections)
    proximal = AnchorProximal() if is_weighted else RolloutProximal()
    kept = {"aggregation": TokenSum(), "advantage": GRPO(), "proximal": proximal, **choices}
    return Algorithm(level=level, rule=rule, corrections=corrections, **kept)


def every_rule() -> list[tuple[str, Rule]]:
    return [(name, built(RULES, name)) for name in RULES.names()]


def every_scale() -> list[Scale]:
    return [built(SCALES, name) for name in SCALES.names()]


def levels(rule: Rule) -> tuple[str, ...]:
    """The levels that a rule works at."""
    return LEVELS if rule.traits.level is None else (rule.traits.level,)


def every_correction() -> list[tuple[str, Correction]]:
    return [(name, built(CORRECTIONS, name)) for name in CORRECTIONS.names()]


def algorithm_with(correction: Correction, rule: Rule, level: str) -> Algorithm:
    """A recipe in which the correction's edge is not trivially 1: a mask on weight = proximal/behavior brings TIS."""
    if correction.traits.is_mask and correction.traits.reads == "weight":
        return algorithm_of(rule, level=level, corrections=(TIS(), correction))
    return algorithm_of(rule, level=level, corrections=(correction,))


def every_algorithm() -> dict[str, Algorithm]:
    """Each rule alone and each correction with PPO, at both levels."""
    ppo = built(RULES, "ppo")
    alone = {
        f"{name}-{level}": algorithm_of(rule, level=level) for name, rule in every_rule() for level in levels(rule)
    }
    weighted = {f"{name}-{level}": algorithm_with(c, ppo, level) for name, c in every_correction() for level in LEVELS}
    return {**alone, **weighted}


def every_aggregation():
    return {name: built(AGGREGATIONS, name) for name in AGGREGATIONS.names()}


def counts(parts: Sequence[TokenBatch]) -> Denominator:
    """The whole step's denominator."""
    live = [torch.unique(t.sequence[t.trainable]).numel() for t in parts]
    return Denominator(num_tokens=sum(int(t.trainable.sum()) for t in parts), num_sequences=sum(live))


def terms_and_gradient(
    drawn: Drawn, algorithm: Algorithm, stats: EdgeStatistics | None = None, denominator: Denominator | None = None
) -> tuple[LossTerms, Tensor]:
    """A micro-batch's share of the loss and its gradient in the current log-probabilities; alone it is the step."""
    tokens, logp = drawn
    tokens = with_proximal(tokens, algorithm)
    stats = measure_scope(algorithm, [(logp, tokens)]) if stats is None else stats
    leaf = logp.detach().clone().requires_grad_()
    terms = policy_loss(PolicyTokens(leaf), tokens, algorithm, stats, denominator or counts([tokens]))
    terms.loss.backward()
    assert leaf.grad is not None
    return terms, leaf.grad


def split_by_response(drawn: Drawn, cut: int) -> list[Drawn]:
    """Two micro-batches: responses before and from ``cut``; either may be empty."""
    tokens, logp = drawn
    before = tokens.sequence < cut
    return [(tokens.select(side), logp[side]) for side in (before, ~before)]
