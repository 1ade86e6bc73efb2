"""Credit within a group: rewards in, advantages out, no loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from parity.batches import SEEDS
from parity.trl_side import advantages
from parity.verl_side import core_algos
from tether.core.advantage import GRPO, RLOO, Advantage, DrGRPO

Estimate = Callable[[Tensor], Tensor]
"""Rewards ``[G, n]`` of G groups to advantages ``[G, n]``."""


@dataclass(frozen=True, kw_only=True)
class Credit:
    """An estimator here and there."""

    method: str
    peer: str
    settings: str
    ours: Advantage
    theirs: Estimate
    rewards: Callable[[int], Tensor]
    cause: str = ""
    explained: Estimate | None = None

    @cached_property
    def gaps(self) -> tuple[float, float | None]:
        """Largest differences, relative to the largest advantage: as translated, and with the cause modelled."""
        seen = [(r, self.theirs(r.clone())) for r in map(self.rewards, SEEDS)]
        plain = max(_relative(_grouped(self.ours, r), a) for r, a in seen)
        explained = self.explained
        return plain, None if explained is None else max(_relative(explained(r), a) for r, a in seen)


def _grouped(estimator: Advantage, rewards: Tensor) -> Tensor:
    found = [estimator(group.double()) for group in rewards]
    return torch.stack([a for a in found if a is not None])


def _relative(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max() / torch.maximum(left.abs().max(), right.abs().max()).clamp(min=1e-30))


def _graded(seed: int) -> Tensor:
    """Rewards of several grades, among them a group of right and wrong and one of equals."""
    rewards = np.random.default_rng(seed).random((5, 4)).round(2)
    rewards[0], rewards[1] = [1, 0, 0, 1], 0.5
    return torch.tensor(rewards)


def _alone(seed: int) -> Tensor:
    """Groups of one."""
    return _graded(seed).view(-1, 1)


def _equal(seed: int) -> Tensor:
    """Groups of 13 equal rewards in float32, as trainers keep them."""
    return torch.tensor([0.1, 0.3, 0.6, 0.7, 0.9])[:, None].repeat(1, 13)


def _verl(name: str, **options: bool) -> Estimate:
    def estimate(rewards: Tensor) -> Tensor:
        groups, size = rewards.shape
        flat = rewards.reshape(-1, 1)
        index = np.repeat(np.arange(groups), size)
        found: Tensor = core_algos.get_adv_estimator_fn(name)(flat, torch.ones_like(flat), index=index, **options)[0]
        return found.view(groups, size)

    return estimate


def _trl(scale_rewards: str) -> Estimate:
    return lambda rewards: advantages(rewards.flatten(), rewards.shape[1], scale_rewards).view_as(rewards)


def _std_plus(epsilon: float) -> Estimate:
    """GRPO's formula in the numbers' own precision, group by group as verl sums them."""
    return lambda rewards: torch.stack([(r - r.mean()) / (r.std() + epsilon) for r in rewards])


CREDITS = (
    *(
        Credit(
            method=method,
            peer="verl",
            settings=name,
            ours=ours,
            theirs=_verl(name.split(",")[0], **options),
            rewards=_graded,
        )
        for method, name, ours, options in (
            ("GRPO", "grpo", GRPO(), {}),
            ("GRPO", "grpo_vectorized", GRPO(), {}),
            ("Dr.GRPO", "grpo, norm_adv_by_std_in_grpo = False", DrGRPO(), {"norm_adv_by_std_in_grpo": False}),
            ("RLOO", "rloo", RLOO(), {}),
            ("RLOO", "rloo_vectorized", RLOO(), {}),
        )
    ),
    Credit(
        method="Dr.GRPO",
        peer="trl",
        settings="scale_rewards = none",
        ours=DrGRPO(),
        theirs=_trl("none"),
        rewards=_graded,
    ),
    Credit(
        method="GRPO",
        peer="trl",
        settings="scale_rewards = group",
        ours=GRPO(),
        theirs=_trl("group"),
        rewards=_graded,
        cause="TRL adds 1e-4 to the standard deviation, tether and verl 1e-6.",
        explained=_std_plus(1e-4),
    ),
    Credit(
        method="GRPO, groups of one",
        peer="verl",
        settings="grpo",
        ours=GRPO(single="raw"),
        theirs=_verl("grpo"),
        rewards=_alone,
    ),
    Credit(
        method="GRPO, 13 equal rewards",
        peer="verl",
        settings="grpo",
        ours=GRPO(),
        theirs=_verl("grpo"),
        rewards=_equal,
        cause="verl computes in float32, where the mean of equal numbers is not the number; tether gives a group of "
        "equals 0, and computes in float64.",
        explained=_std_plus(1e-6),
    ),
)
