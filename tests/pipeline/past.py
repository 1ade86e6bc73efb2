"""A learner that has a past: rollouts whose tokens were sampled at several versions of its weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tether.models.policy import Policy
from tether.pipeline.learner import LocalLearner
from tether.pipeline.old_policy import Cost, OldPolicy, Rescoring
from tether.pipeline.scoring import Scorer
from tether.records import Group, Rollout
from tether.weights.memory import MemoryStore

from .small import Bench, algorithm_of, naive_logp, step_of

BUDGET = 60


def learner_of(bench: Bench, make_old, *, lag: int = 1, updates_per_batch: int = 1, lr: float = 3e-3) -> LocalLearner:
    """``make_old``: from the policy and how a part of a batch is evaluated."""
    trainer = bench.trainer(algorithm_of("grpo"), lr=lr)
    rescoring = Rescoring(policy=trainer.policy, temperature=1.0, cost=Cost())
    old: OldPolicy = make_old(trainer.policy, rescoring)

    async def evaluate(*_):
        raise NotImplementedError

    return LocalLearner(
        trainer=trainer,
        store=MemoryStore("float32"),
        evaluator=evaluate,
        loaded=bench.loaded,
        dtype="float32",
        token_budget=BUDGET,
        updates_per_batch=updates_per_batch,
        old=old,
    )


def scorer_of(policy: Policy) -> Scorer:
    return Scorer(policy, BUDGET, 1.0)


def weights_of(learner: LocalLearner) -> dict[str, Tensor]:
    return copy.deepcopy(dict(learner.trainer.policy.model.state_dict()))


def at_versions(groups: Sequence[Group], versions: Sequence[int]) -> list[Group]:
    """The tokens of every rollout dealt to these versions, in order; the number of the rollout says how evenly."""
    made = []
    for number, group in enumerate(groups):
        rollouts = []
        for member, r in enumerate(group.rollouts):
            length = len(r.completion)
            few = versions[: 1 + (number + member) % len(versions)]
            dealt = np.sort(np.array(few, np.int32)[np.arange(length) % len(few)])
            rollouts.append(replace(r, completion=replace(r.completion, version=dealt)))
        made.append(replace(group, rollouts=tuple(rollouts)))
    return made


def wanted_old(bench: Bench, past: dict[int, dict[str, Tensor]], rollout: Rollout) -> Tensor:
    """Each token by a model that holds its version, without any batch."""
    scores = {}
    for version in {int(v) for v in rollout.completion.version}:
        model = copy.deepcopy(bench.loaded.model)
        model.load_state_dict(past[version])
        scores[version] = naive_logp(model, rollout.prompt.token_ids, rollout.completion.token_ids.tolist())
    versions = rollout.completion.version.tolist()
    return torch.stack([scores[v][i] for i, v in enumerate(versions)]) if versions else torch.zeros(0)


def laid_by_rollout(step) -> dict[str, Tensor]:
    pieces = {}
    for m in step.micro_batches:
        lengths = [len(row.rollout.completion) for row in m.rows]
        pieces |= {row.rollout.id: x for row, x in zip(m.rows, m.logp_old.split(lengths), strict=True)}
    return pieces


def assert_old(bench: Bench, past, step, updates: int) -> None:
    """Every token of a laid step is as it was at its own version; those of ``updates`` are left to the trainer."""
    found = laid_by_rollout(step)
    count = 0
    for row in step.rows:
        got, stale = found[row.rollout.id], torch.from_numpy(row.rollout.completion.version != updates)
        want = wanted_old(bench, past, row.rollout)
        torch.testing.assert_close(got[stale], want[stale], atol=2e-5, rtol=1e-5)
        count += int(stale.sum())
    assert count > 20


def step_at(groups: Sequence[Group], versions: Sequence[int]):
    return step_of(at_versions(groups, versions), BUDGET)
