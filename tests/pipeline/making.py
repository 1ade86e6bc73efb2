"""Rollouts and groups out of nothing, and the parts of a run that stand in for a model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tether.evals.runner import Evaluation
from tether.pipeline.packing import Step
from tether.pipeline.trainer import StepReport
from tether.placement.inline import InlineClock
from tether.ports import EngineCapabilities, GenerationRequest, Publication
from tether.records import Completion, Group, Metric, Prompt, Rollout
from tether.weights.memory import MemoryStore


def completion_of(
    ids: Sequence[int], *, version: int | Sequence[int] = 0, logp: Sequence[float] | None = None
) -> Completion:
    length = len(ids)
    return Completion(
        token_ids=np.array(ids, np.int32),
        logp=np.array([-0.5] * length if logp is None else logp, np.float32),
        entropy=np.full(length, 0.25, np.float32),
        version=np.array([version] * length if isinstance(version, int) else version, np.int32),
        finish="stop",
    )


def rollout_of(id: str, prompt_ids: Sequence[int], completion: Completion, reward: float = 0.0) -> Rollout:
    prompt = Prompt(id=f"p/{id.partition('/')[0]}", text="?", token_ids=tuple(prompt_ids), reference="!")
    return Rollout(
        id=id, prompt=prompt, completion=completion, text="", reward=float(reward), started_s=0.0, finished_s=0.0
    )


def group_of(index: int, rollouts: Sequence[Rollout]) -> Group:
    return Group(id=f"g{index}", index=index, rollouts=tuple(rollouts))


def random_groups(seed: int, count: int, size: int, *, vocabulary: int = 24, longest: int = 12) -> list[Group]:
    """Groups of random rewards, prompts and completions of many lengths."""
    numbers = random.Random(seed)

    def ids(length: int) -> list[int]:
        return [numbers.randrange(vocabulary) for _ in range(length)]

    groups = []
    for g in range(count):
        prompt = ids(numbers.randint(1, 8))
        rollouts = [
            rollout_of(
                f"g{g}/{m}", prompt, completion_of(ids(numbers.randint(1, longest))), float(numbers.randint(0, 3))
            )
            for m in range(size)
        ]
        groups.append(group_of(g, rollouts))
    return groups


class ScriptedEngine:
    """Decodes nothing in particular, a few tokens between two moments at which weights may change."""

    def __init__(self, clock: InlineClock, numbers: random.Random) -> None:
        self._clock, self._numbers = clock, numbers
        self._version = -1

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(logp="processed", entropy=True, top_k=False, token_versions=True)

    @property
    def version(self) -> int:
        return self._version

    def in_flight(self) -> None:
        """Nothing is told: what is under way is asked for again."""

    async def generate(self, requests: Sequence[GenerationRequest], flight: None = None) -> list[Completion]:
        lengths = [self._numbers.randint(1, request.max_tokens) for request in requests]
        versions: list[int] = []
        while len(versions) < max(lengths):
            versions.append(self._version)
            await self._clock.spend("generate_token")
        return [completion_of([2] * length, version=versions[:length]) for length in lengths]

    async def load(self, publication: Publication) -> str:
        self._version = publication.version
        return publication.fingerprint


class CountingLearner:
    """Counts updates and notes the staleness of what it is given; its model is one number, the count."""

    def __init__(self, skips: frozenset[int] = frozenset()) -> None:
        self.updates = 0
        self.store = MemoryStore("float32")
        self.skips = skips
        self.seen: list[set[int]] = []
        self.used: list[str] = []

    async def step(self, step: Step) -> StepReport:
        versions = torch.cat([m.version for m in step.micro_batches])
        self.seen.append(set((self.updates - versions).tolist()))
        self.used += [rollout.id for group in step.groups for rollout in group.rollouts]
        updated = len(self.seen) not in self.skips
        self.updates += updated
        return StepReport(updated=updated, metrics={"policy/lr": Metric(0.0)}, logp={}, staleness={})

    async def publish(self) -> Publication:
        return self.store.publish(self.updates, {"w": torch.full((3,), float(self.updates))})

    remark = ""

    @property
    def sharing(self) -> None:
        """No layout in which rows share a prompt."""

    async def score(self, rollouts: Sequence[Rollout], publication: Publication, temperature: float) -> Any:
        raise NotImplementedError

    async def check_masks(self, rollouts: Sequence[Rollout]) -> None:
        raise NotImplementedError

    async def evaluate(self) -> Evaluation:
        raise NotImplementedError

    async def save_model(self, folder: Path) -> None:
        folder.mkdir()

    async def save(self, folder: Path) -> None:
        (folder / "updates").write_text(str(self.updates))

    async def restore(self, folder: Path) -> Publication:
        self.updates = int((folder / "updates").read_text())
        return await self.publish()
