"""Losses of ``logp``: tether's, or those of another library, with their settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from parity.batches import Batch
from tether import Algorithm, PolicyTokens, measure_scope, policy_loss
from tether.config.bind import bind

Table = Mapping[str, Any]


class Answer(NamedTuple):
    """What a side makes of a batch."""

    value: float
    gradient: Tensor
    """In ``logp``, ``[B, T]``."""


class Loss(Protocol):
    """A loss of ``logp``."""

    def loss(self, batch: Batch, logp: Tensor) -> Tensor:
        """What is minimized, differentiable in ``logp``."""
        ...


class Side(Loss, Protocol):
    """A library's loss with its settings."""

    @property
    def settings(self) -> str:
        """As one would write them, for the table."""
        ...


def answer(side: Loss, batch: Batch) -> Answer:
    """Value and gradient."""
    logp = batch.logp.clone().requires_grad_()
    loss = side.loss(batch, logp)
    loss.backward()
    assert logp.grad is not None
    return Answer(float(loss.detach()), logp.grad)


def unscaled(batch: Batch) -> float:
    """As tether counts."""
    return 1.0


@dataclass(frozen=True)
class Tether:
    """An algorithm, as a recipe's tables say it; ``scale`` models a denominator that another library has."""

    table: Table
    scale: Callable[[Batch], float] = unscaled
    name: str = ""

    @property
    def settings(self) -> str:
        """Its name, or what matters of the tables."""
        return self.name or shown(self.table)

    @property
    def algorithm(self) -> Algorithm:
        """Built as a recipe builds it."""
        return bind(Algorithm, self.table, "algorithm")

    def loss(self, batch: Batch, logp: Tensor) -> Tensor:
        """The share of the one micro-batch of the step."""
        algorithm = self.algorithm
        flat = logp[batch.inside]
        tokens = replace(batch.tokens, logp_proximal=algorithm.proximal(batch.tokens, flat.detach()))
        stats = measure_scope(algorithm, [(flat.detach(), tokens)])
        terms = policy_loss(PolicyTokens(flat), tokens, algorithm, stats, batch.denominator)
        return self.scale(batch) * terms.loss


def table(
    *,
    rule: Table,
    level: str = "token",
    proximal: str = "rollout",
    aggregation: str | Table = "token-mean",
    **more: Any,
) -> dict[str, Any]:
    """A recipe's ``[algorithm]``; what is left out is the same in every case."""
    return {
        "proximal": {"name": proximal},
        "level": level,
        "rule": rule,
        "aggregation": {"name": aggregation} if isinstance(aggregation, str) else aggregation,
        "advantage": {"name": "grpo"},
        **more,
    }


USUAL = {"proximal": {"name": "rollout"}, "level": "token", "aggregation": {"name": "token-mean"}}
"""Of an algorithm's table, what is not worth a word."""


def shown(table: Table) -> str:
    """``rule = ppo(epsilon_low = 0.2)``: without what is usual, and without advantages, which no loss computes."""
    parts = [
        f"{key} = {_value(value)}" for key, value in table.items() if key != "advantage" and USUAL.get(key) != value
    ]
    return ", ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return " and ".join(map(_value, value))
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    options = ", ".join(f"{key} = {_value(option)}" for key, option in value.items() if key != "name")
    return f"{value['name']}({options})" if options else str(value["name"])
