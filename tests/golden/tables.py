"""The worked numbers, as tests read them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tether.core.advantage import GRPO
from tether.core.aggregation import Denominator, TokenSum
from tether.core.algorithm import Algorithm
from tether.core.loss import LossTerms, measure_scope, policy_loss
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.proximal.anchor import AnchorProximal
from tether.proximal.rollout import RolloutProximal

TABLES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("worked_examples.json").read_text("utf-8"))

Row = dict[str, Any]


def table(name: str) -> dict[str, Any]:
    """The raw table."""
    return TABLES[name]


def rows(name: str) -> list[Row]:
    """Rows as column -> value."""
    raw = table(name)
    return [dict(zip(raw["columns"], row, strict=True)) for row in raw["rows"]]


def inputs(name: str) -> dict[str, Any]:
    """Settings and inputs that the rows do not carry."""
    return table(name)["inputs"]


def label(row: Row) -> str:
    """A test id: the row's first value."""
    return str(next(iter(row.values())))


def assert_close(got: Tensor | float | Sequence[float], wanted: Any) -> None:
    """Float32 tolerance of the worked numbers: 1e-5 relative, 1e-7 absolute."""
    torch.testing.assert_close(
        torch.as_tensor(got, dtype=torch.float64).detach(),
        torch.as_tensor(wanted, dtype=torch.float64),
        rtol=1e-5,
        atol=1e-7,
    )


def tokens_with(
    *,
    behavior: Sequence[float],
    advantage: Sequence[float],
    proximal: Sequence[float] | None = None,
    sequence: Sequence[int] | None = None,
) -> TokenBatch:
    """Trainable tokens with these log-probabilities."""
    n = len(behavior)
    ids = torch.tensor(list(range(n)) if sequence is None else sequence)
    return TokenBatch(
        logp_behavior=torch.tensor(behavior, dtype=torch.float32),
        logp_proximal=torch.tensor(behavior if proximal is None else proximal, dtype=torch.float32),
        advantage=torch.tensor(advantage, dtype=torch.float32),
        trainable=torch.ones(n, dtype=torch.bool),
        sequence=ids,
        group=ids,
        staleness=torch.zeros(n, dtype=torch.int64),
    )


def recipe(rule, *, level: str = "token", corrections: tuple = (), **choices) -> Algorithm:
    """A rule on pi/behavior, or on pi/anchor where a weight completes it; losses are summed unless said otherwise."""
    weighted = any(not c.traits.is_mask for c in corrections)
    kept = {"proximal": AnchorProximal() if weighted else RolloutProximal(), "aggregation": TokenSum(), **choices}
    return Algorithm(level=level, rule=rule, corrections=corrections, advantage=GRPO(), **kept)


def loss_and_gradient(
    tokens: TokenBatch, logp: Tensor | Sequence[float], algorithm: Algorithm, denominator: Denominator | None = None
) -> tuple[LossTerms, Tensor]:
    """Loss of one step and its gradient in the current log-probabilities."""
    leaf = torch.as_tensor(logp, dtype=torch.float32).detach().clone().requires_grad_()
    counted = Denominator(num_tokens=int(tokens.trainable.sum()), num_sequences=int(tokens.sequence.unique().numel()))
    stats = measure_scope(algorithm, [(leaf, tokens)])
    terms = policy_loss(PolicyTokens(leaf), tokens, algorithm, stats, denominator or counted)
    terms.loss.backward()
    assert leaf.grad is not None
    return terms, leaf.grad


def one_by_one(tokens: TokenBatch, logp: Tensor | Sequence[float], algorithm: Algorithm) -> tuple[Tensor, Tensor]:
    """Loss and gradient of each token, with statistics of the whole batch; under ``token-sum`` a token's own."""
    leaf = torch.as_tensor(logp, dtype=torch.float32).detach().clone().requires_grad_()
    stats = measure_scope(algorithm, [(leaf, tokens)])
    losses = []
    for i in range(len(tokens)):
        alone = dataclasses.replace(tokens, trainable=torch.arange(len(tokens)) == i)
        losses.append(policy_loss(PolicyTokens(leaf), alone, algorithm, stats, Denominator(1, 1)).loss)
    loss = torch.stack(losses)
    loss.sum().backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad


def log(values: Sequence[float]) -> list[float]:
    """Natural logarithms."""
    return [math.log(x) for x in values]


@dataclasses.dataclass(frozen=True)
class Given:
    """A correction with given factors: stands for a weight or mask that a worked example takes as input."""

    values: tuple[float, ...]
    is_mask: bool

    @property
    def traits(self) -> Traits:
        return Traits(reads="total" if self.is_mask else "weight", is_mask=self.is_mask, keeps_pull_back=False)

    def __call__(self, log_ratio: Tensor, policy: PolicyTokens, tokens: TokenBatch, stats: Statistics) -> Weight:
        return Weight(torch.tensor(self.values))
