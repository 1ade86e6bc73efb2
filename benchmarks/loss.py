"""``policy_loss`` with SAT against PPO at a million tokens, value and gradient; the quantile's measurement apart.

A tenth of the tokens is gated and half of that is cut. A batch of the usual size is shown as well: there the number of
operations counts, not the memory they read, and both are a small part of a millisecond beside a step.
"""

from __future__ import annotations

import torch
from _measure import Work, in_turns, median, print_machine, ratio, verdict
from torch import Tensor

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator, TokenMean
from tether.core.algorithm import Algorithm
from tether.core.loss import EdgeStatistics, measure_scope, policy_loss
from tether.core.rule import PolicyTokens, Rule
from tether.core.tokens import TokenBatch
from tether.proximal.rollout import RolloutProximal
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

GOAL = 1.25
SPREAD = 0.05
"""Standard deviation of the log-ratios: that of a stale batch."""
RESPONSE = 1000
"""Tokens of a response."""
SIZES = {1_000_000: 31, 16_384: 201}
"""Tokens, and turns."""


def algorithm_of(rule: Rule) -> Algorithm:
    return Algorithm(proximal=RolloutProximal(), level="token", rule=rule, aggregation=TokenMean(), advantage=GRPO())


def batch(size: int) -> tuple[TokenBatch, Tensor]:
    """Tokens of many responses, all trainable, and their current log-probabilities."""
    draw = torch.Generator().manual_seed(0)
    behavior = -3 * torch.rand(size, generator=draw)
    responses = torch.arange(size) // RESPONSE
    tokens = TokenBatch(
        logp_behavior=behavior,
        logp_proximal=behavior,
        advantage=torch.randn(size // RESPONSE + 1, generator=draw)[responses],
        trainable=torch.ones(size, dtype=torch.bool),
        sequence=responses,
        group=responses // 8,
        staleness=torch.full((size,), 8),
    )
    return tokens, (behavior + SPREAD * torch.randn(size, generator=draw)).requires_grad_()


def compare(size: int, rounds: int) -> None:
    tokens, logp = batch(size)
    denominator = Denominator(num_tokens=size, num_sequences=int(tokens.sequence[-1]) + 1)
    sat, ppo = algorithm_of(SAT()), algorithm_of(PPO())
    stats = measure_scope(sat, [(logp, tokens)])

    def loss(algorithm: Algorithm, measured: EdgeStatistics) -> Work:
        def work() -> None:
            logp.grad = None
            policy_loss(PolicyTokens(logp), tokens, algorithm, measured, denominator).loss.backward()

        return work

    costs = in_turns(
        {
            "sat": loss(sat, stats),
            "ppo": loss(ppo, stats),
            "quantile": lambda: measure_scope(sat, [(logp, tokens)]),
        },
        rounds,
    )
    print(f"{size:,} tokens, value and gradient, medians of {rounds} turns")
    print(f"  ppo (floor)                {median(costs['ppo'])}")
    print(f"  sat                        {median(costs['sat'])}")
    print(f"  apart: quantile of |d|     {median(costs['quantile'])}")
    found = ratio(costs["sat"], costs["ppo"])
    print(f"  sat / ppo                  {verdict(found, GOAL) if size >= 1_000_000 else f'{found:.2f}x'}")


def main() -> None:
    print_machine()
    for size, rounds in SIZES.items():
        compare(size, rounds)


if __name__ == "__main__":
    main()
