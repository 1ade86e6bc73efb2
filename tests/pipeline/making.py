"""Rollouts and groups out of nothing, and the parts of a run that stand in for a model."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tether.errors import EngineLostError
from tether.evals.evaluation import Evaluation
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


def chance(*names: object) -> float:
    """A number between 0 and 1 that depends on the names alone."""
    return random.Random(" ".join(map(str, names))).random()


@dataclass(frozen=True, kw_only=True)
class Manners:
    """What a scripted engine does to those who rely on it."""

    loses: float = 0.0
    """How likely it dies at a completion's first token, or at a load, once each; all that is under way dies with it."""
    hangs: float = 0.0
    """How likely a completion never ends."""
    load_s: float = 0.0
    """How long a load takes; what is sampled meanwhile is of the version before."""
    tells: bool = True
    """Whether it can tell its flight."""


FINE = Manners()


@dataclass(slots=True, kw_only=True)
class Line:
    """A completion of a scripted engine, on its way."""

    versions: list[int]
    until_s: float | None = None
    is_interrupted: bool = False
    is_dead: bool = False
    waiter: asyncio.Future[None] | None = None


class ScriptedEngine:
    """Decodes nothing in particular, each completion at a pace of its own, and stands to what an engine promises."""

    def __init__(self, clock: InlineClock, seed: int = 0, manners: Manners = FINE) -> None:
        self._clock, self._seed, self._manners = clock, seed, manners
        self._version, self._number = -1, -1
        self._lines: dict[str, Line] = {}
        self._kept: dict[str, Line] = {}
        self._died_of: set[str] = set()
        self._is_closed = False
        self._changed = asyncio.Condition()
        self.most = 0
        self.num_lost = 0
        self.busy_s = 0.0

    @property
    def capabilities(self) -> EngineCapabilities:
        return EngineCapabilities(logp="processed", entropy=True, alternatives=False, token_versions=True)

    @property
    def version(self) -> int:
        return self._version

    def in_flight(self) -> Mapping[str, Any] | None:
        if not self._manners.tells:
            return None
        lines = {id: (list(line.versions), line.until_s, line.is_interrupted) for id, line in self._lines.items()}
        return {"lines": lines, "died of": sorted(self._died_of)}

    def restore(self, flight: Mapping[str, Any]) -> None:
        self._died_of = set(flight["died of"])
        self._kept = {
            id: Line(versions=list(versions), until_s=until_s, is_interrupted=is_interrupted)
            for id, (versions, until_s, is_interrupted) in flight["lines"].items()
        }

    async def progress(self) -> dict[str, Completion]:
        return {
            id: replace(completion_of([2] * len(line.versions), version=line.versions), finish="interrupted")
            for id, line in self._lines.items()
        }

    async def generate(self, request: GenerationRequest) -> Completion:
        numbers = random.Random(f"{self._seed} {request.id}")
        length, pace = numbers.randint(1, request.max_tokens), numbers.choice([1.0, 1.0, numbers.random(), 5.0])
        hangs = numbers.random() < self._manners.hangs
        while self._is_closed:
            async with self._changed:
                await self._changed.wait()
        if self._version < 0:
            raise EngineLostError(f"an engine without weights was asked for {request.id}")
        so_far = [] if request.so_far is None else request.so_far.version.tolist()
        line = self._lines[request.id] = self._kept.pop(request.id, None) or Line(versions=so_far)
        self.most = max(self.most, len(self._lines))
        try:
            while len(line.versions) < length or line.until_s is not None:
                if line.until_s is None:
                    line.versions.append(self._version)
                    line.until_s = math.inf if hangs else self._clock.due("generate_token", pace)
                await self._until(line, line.until_s)
                line.until_s = None
                self._perhaps_die(request.id)
                if line.is_interrupted and len(line.versions) < length:
                    done = completion_of([2] * len(line.versions), version=line.versions)
                    return replace(done, finish="interrupted")
            return completion_of([2] * length, version=line.versions)
        finally:
            del self._lines[request.id]
            async with self._changed:
                self._changed.notify_all()

    async def _until(self, line: Line, moment_s: float) -> None:
        """Wait for a moment, or for the death of the engine."""
        loop = asyncio.get_running_loop()
        line.waiter = loop.create_future()
        timer = None if math.isinf(moment_s) else loop.call_at(moment_s, _arrive, line.waiter)
        try:
            await line.waiter
        finally:
            if timer is not None:
                timer.cancel()
        if line.is_dead:
            raise EngineLostError("the engine died")

    def _perhaps_die(self, why: str) -> None:
        if why in self._died_of or chance(self._seed, why, "dies") >= self._manners.loses:
            return
        self._died_of.add(why)
        self.num_lost += 1
        self._version, self._number, self._is_closed = -1, -1, False
        for line in self._lines.values():
            line.is_dead = True
            if line.waiter is not None:
                _arrive(line.waiter)
        raise EngineLostError(f"the engine died of {why}")

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return [completion_of([2], version=self._version) for _ in requests]

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        if in_flight == "finish" and self._lines:
            self._is_closed = True
            async with self._changed:
                await self._changed.wait_for(lambda: not self._lines)
            self._is_closed = False
        if self._manners.load_s and (self._number >= 0 or self.num_lost):  # the first is over before the run begins
            await self._clock.until(self._clock.now() + self._manners.load_s)
        self._perhaps_die(f"load {publication.version}")
        assert self._number in (-1, publication.number, publication.number - 1), "a publication out of sequence"
        for line in self._lines.values():
            line.is_interrupted = in_flight == "restart"
        self._version, self._number = publication.version, publication.number
        async with self._changed:
            self._changed.notify_all()
        return publication.fingerprint


def _arrive(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class CountingLearner:
    """Counts updates and notes the staleness of what it is given, update by update; its model is one number, the
    count."""

    def __init__(self, skips: Collection[int] = (), updates_per_batch: int = 1) -> None:
        self.updates = 0
        self.attempts = 0
        """Updates made or skipped; ``skips`` counts them from 1."""
        self.store = MemoryStore("float32")
        self.skips, self.each = frozenset(skips), updates_per_batch
        self.seen: list[set[int]] = []
        self.used: list[str] = []
        self.batches: list[tuple[int, ...]] = []

    async def step(self, step: Step) -> StepReport:
        rollouts = [rollout for group in step.groups for rollout in group.rollouts]
        versions = {int(version) for rollout in rollouts for version in rollout.completion.version}
        self.used += [rollout.id for rollout in rollouts]
        self.batches.append(tuple(group.index for group in step.groups))
        before = self.updates
        for _ in range(self.each):
            self.seen.append({self.updates - version for version in versions})
            self.attempts += 1
            self.updates += self.attempts not in self.skips
        updated = self.updates > before
        return StepReport(updated=updated, metrics={"policy/lr": Metric(0.0)}, logp={}, staleness={})

    async def publish(self, live: int | None = None) -> Publication:
        return self.store.publish(self.updates, {"w": torch.full((3,), float(self.updates))})

    async def publish_trial(self) -> None:
        """No adapter."""

    async def old_publications(self) -> tuple[Publication, ...]:
        return ()

    async def acquire(self, rollouts: Sequence[Rollout], alive: Collection[str]) -> None:
        """Nothing is scored."""

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
