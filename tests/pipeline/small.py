"""A small random policy, steps whose ratios are worth clipping, and what a step does to the weights."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.engines.tiny import build
from tether.config.bind import bind
from tether.config.presets import preset
from tether.core.advantage import GRPO
from tether.core.algorithm import Algorithm
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.pipeline.packing import Step, pack
from tether.pipeline.trainer import StepReport, Trainer, TrainerOptions
from tether.records import Group

from .making import group_of, random_groups, rollout_of


def loaded_of(kind: str = "moe", seed: int = 0) -> LoadedModel:
    """A random model in the place of the embedded one; only ids below its vocabulary are used."""
    return replace(load_model("tiny-moe"), model=build(kind, seed), eos_ids=(1,), pad_id=0, context=64)


def algorithm_of(name: str = "grpo", **changes: Any) -> Algorithm:
    """A preset, changed."""
    table = {**preset(name), **changes}
    if table["aggregation"]["name"] == "seq-mean-token-sum-norm":
        table["aggregation"]["horizon"] = 16
    return bind(Algorithm, table, "algorithm")


@torch.no_grad()
def naive_logp(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    """Log-probabilities of a completion, from the model's own logits and without any batch."""
    return naive_logp_with_gradient(model, prompt, ids, temperature)


def naive_logp_with_gradient(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float = 1.0) -> Tensor:
    logits = model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0].float() / temperature
    places = torch.arange(len(prompt) - 1, len(prompt) - 1 + len(ids))
    return logits[places].log_softmax(-1)[torch.arange(len(ids)), torch.tensor(list(ids))]


def off_policy(model: Any, groups: Sequence[Group], spread: float = 0.08, version: int = 0) -> list[Group]:
    """The groups with behavior log-probabilities at random distances from the model's."""
    noise = np.random.default_rng(3)
    made = []
    for group in groups:
        rollouts = []
        for r in group.rollouts:
            logp = naive_logp(model, r.prompt.token_ids, r.completion.token_ids.tolist()).numpy()
            moved = np.minimum(logp + spread * noise.standard_normal(len(logp)), -1e-3).astype(np.float32)
            completion = replace(r.completion, logp=moved, version=np.full(len(logp), version, np.int32))
            rollouts.append(rollout_of(r.id, r.prompt.token_ids, completion, r.reward))
        made.append(group_of(group.index, rollouts))
    return made


def step_of(groups: Sequence[Group], budget: int = 4096, advantage: Any = None) -> Step:
    return pack(groups, advantage or GRPO(), token_budget=budget, pad_id=0, device="cpu")


@dataclass
class Bench:
    """One model, put back to where it began before each trial."""

    loaded: LoadedModel

    def __post_init__(self) -> None:
        self.state = copy.deepcopy(self.loaded.model.state_dict())
        self.groups = off_policy(self.loaded.model, random_groups(1, 4, 4))

    def model(self) -> Any:
        """The model as it was, without gradients."""
        self.loaded.model.load_state_dict(self.state)
        self.loaded.model.zero_grad(set_to_none=True)
        return self.loaded.model

    def trainer(self, algorithm: Algorithm | None = None, *, allowed: int = 100, reference=None, **options) -> Trainer:
        self.model()
        settings = TrainerOptions(**{"grad_clip": 1e9, "warmup": 0, **options})
        policy = Policy(self.loaded, gradient_checkpointing=settings.gradient_checkpointing)
        return Trainer(
            policy,
            algorithm or algorithm_of(),
            settings,
            reference=reference,
            temperature=1.0,
            limits=(100, allowed),
        )

    def trial(self, trainer: Trainer, step: Step) -> Trial:
        """One step, with the gradient caught just before the optimizer uses it."""
        gradient: dict[str, Tensor] = {}

        def catch(*_: Any) -> None:
            named = trainer.policy.model.named_parameters()
            gradient.update({name: p.grad.clone() for name, p in named if p.grad is not None})

        handle = trainer._optimizer.register_step_pre_hook(catch)
        report = trainer.step(step)
        handle.remove()
        return Trial(report, gradient, copy.deepcopy(dict(trainer.policy.model.state_dict())))


@dataclass
class Trial:
    report: StepReport
    gradient: Mapping[str, Tensor]
    weights: Mapping[str, Tensor]

    def number(self, name: str) -> float:
        value = self.report.metrics[name].value
        assert isinstance(value, float)
        return value


def assert_same_gradient(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 2e-5) -> None:
    """Equal up to rounding, relative to the largest number of each tensor."""
    assert one.keys() == other.keys()
    for name in one:
        scale = max(float(one[name].abs().max()), float(other[name].abs().max()))
        gap = float((one[name] - other[name]).abs().max())
        assert gap <= tolerance * max(scale, 1e-3), f"{name}: {gap} at {scale}"


def same_weights(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
