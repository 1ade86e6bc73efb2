"""Rollouts and groups out of nothing, and the parts of a run that stand in for a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tether.evals.runner import Evaluation
from tether.pipeline.packing import Step
from tether.pipeline.trainer import StepReport
from tether.placement.inline import InlineClock
from tether.ports import EngineCapabilities, GenerationRequest, InFlight, Publication
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


@dataclass(slots=True)
class Line:
    """A completion of a scripted engine, on its way."""

    versions: list[int] = field(default_factory=list)
    until_s: float | None = None
    is_interrupted: bool = False


class ScriptedEngine:
    """Decodes nothing in particular, each completion at a pace of its own, and stands to what an engine promises."""

    def __init__(self, clock: InlineClock, seed: int = 0) -> None:
        self._clock, self._seed = clock, seed
        self._version, self._number = -1, -1
        self._lines: dict[str, Line] = {}
        self._kept: dict[str, Line] = {}
        self._is_closed = False
        self._changed = asyncio.Condition()
        self.most = 0
        self.busy_s = 0.0

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(logp="processed", entropy=True, top_k=False, token_versions=True)

    @property
    def version(self) -> int:
        return self._version

    def _numbers(self, request: GenerationRequest) -> random.Random:
        return random.Random(f"{self._seed} {request.id}")

    def in_flight(self) -> Mapping[str, Any]:
        return {id: (list(line.versions), line.until_s, line.is_interrupted) for id, line in self._lines.items()}

    def restore(self, flight: Mapping[str, Any]) -> None:
        self._kept = {id: Line(list(versions), *rest) for id, (versions, *rest) in flight.items()}

    async def progress(self) -> dict[str, Completion]:
        return {
            id: replace(completion_of([2] * len(line.versions), version=line.versions), finish="interrupted")
            for id, line in self._lines.items()
        }

    async def generate(self, request: GenerationRequest) -> Completion:
        numbers = self._numbers(request)
        length, pace = numbers.randint(1, request.max_tokens), numbers.choice([1.0, 1.0, numbers.random(), 5.0])
        while self._is_closed:
            async with self._changed:
                await self._changed.wait()
        so_far = [] if request.so_far is None else request.so_far.version.tolist()
        line = self._lines[request.id] = self._kept.pop(request.id, None) or Line(so_far)
        self.most = max(self.most, len(self._lines))
        try:
            while len(line.versions) < length or line.until_s is not None:
                if line.until_s is None:
                    line.versions.append(self._version)
                    line.until_s = self._clock.due("generate_token", pace)
                await self._clock.until(line.until_s)
                line.until_s = None
                if line.is_interrupted and len(line.versions) < length:
                    done = completion_of([2] * len(line.versions), version=line.versions)
                    return replace(done, finish="interrupted")
            return completion_of([2] * length, version=line.versions)
        finally:
            del self._lines[request.id]
            async with self._changed:
                self._changed.notify_all()

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return [completion_of([2], version=self._version) for _ in requests]

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        assert self._number in (-1, publication.number, publication.number - 1)
        if in_flight == "finish" and self._lines:
            self._is_closed = True
            async with self._changed:
                await self._changed.wait_for(lambda: not self._lines)
            self._is_closed = False
        for line in self._lines.values():
            line.is_interrupted = in_flight == "restart"
        self._version, self._number = publication.version, publication.number
        async with self._changed:
            self._changed.notify_all()
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

    async def publish(self, live: int | None = None) -> Publication:
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
