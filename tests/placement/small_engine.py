"""An engine without a model, which blocks its thread and gives way as one with a model does; a moody reward."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tether.errors import EngineLostError, NonFiniteError
from tether.placement.parts import Makers
from tether.ports import Clock, EngineCapabilities, GenerationRequest, InFlight, Publication, WeightStore
from tether.records import Answer, Completion, Prompt
from tether.rewards.composition import Composition, alone

BLOCK = 8
"""Tokens between two moments at which it gives way."""


class SmallEngine:
    """Decodes everything under way together, a block at a time; a token's id is the engine's version."""

    capabilities = EngineCapabilities(logp="processed", entropy=True, alternatives=True, token_versions=True)

    def __init__(self, clock: Clock, block_s: float) -> None:
        self._clock, self._block_s = clock, block_s
        self.version, self.busy_s = -1, 0.0
        self._rows: dict[str, list[int]] = {}
        self._wanted: dict[str, int] = {}
        self._done: dict[str, asyncio.Future[str]] = {}
        self._decoding: asyncio.Task[None] | None = None

    async def generate(self, request: GenerationRequest) -> Completion:
        if request.id.startswith("nan"):
            raise NonFiniteError("a logit is NaN", rollout_id=request.id)
        if request.id.startswith("server"):
            raise EngineLostError("the server at 127.0.0.1 was lost")
        if request.id.startswith("hang"):
            await asyncio.Event().wait()
        if request.id.startswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        self._rows[request.id] = [] if request.so_far is None else request.so_far.token_ids.tolist()
        self._wanted[request.id] = request.max_tokens
        done = self._done[request.id] = asyncio.get_running_loop().create_future()
        if self._decoding is None or self._decoding.done():
            self._decoding = asyncio.get_running_loop().create_task(self._decode())
        try:
            return completion(self._rows[request.id], await done)
        finally:
            for of in (self._rows, self._wanted, self._done):
                of.pop(request.id, None)

    async def _decode(self) -> None:
        while self._rows:
            began = time.perf_counter()
            time.sleep(self._block_s)
            self.busy_s += time.perf_counter() - began
            for id, row in self._rows.items():
                row.extend([self.version] * min(BLOCK, self._wanted[id] - len(row)))
                if len(row) == self._wanted[id] and not self._done[id].done():
                    self._done[id].set_result("length")
            await self._clock.until(self._clock.due("generate_token", BLOCK))

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return [completion([self.version] * request.max_tokens, "length") for request in requests]

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        while in_flight == "finish" and self._rows:
            await asyncio.sleep(0)
        if in_flight == "restart":
            for done in self._done.values():
                if not done.done():
                    done.set_result("interrupted")
        self.version = publication.version
        return publication.fingerprint

    async def progress(self) -> Mapping[str, Completion]:
        return {id: completion(row, "interrupted") for id, row in self._rows.items()}


def completion(row: Sequence[int], finish: Any) -> Completion:
    ids = np.array(row, dtype=np.int32)
    numbers = np.zeros(len(ids), np.float32)
    return Completion(token_ids=ids, logp=numbers, entropy=numbers, version=ids, finish=finish)


class Moody:
    """A reward that does what the response says."""

    def __call__(self, prompt: Prompt, answer: Answer) -> float:
        mood, _, about = answer.text.partition(" ")
        if mood == "hang":
            time.sleep(600)
        if mood == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mood == "die-once" and not os.path.exists(about):
            open(about, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if mood == "raise":
            raise ValueError("no such answer")
        if mood == "nap":
            time.sleep(float(about))
        return float(os.getpid()) if mood == "pid" else 1.0


def moody() -> Composition:
    return alone(Moody(), "moody")


class MoodyTogether(Moody):
    """The same, asked about many: of a batch that does not end nobody hears."""

    gathers = True

    def judge_all(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> list[float]:
        told = [self(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return [
            float(len(answers)) if answer.text == "count" else one for answer, one in zip(answers, told, strict=True)
        ]


def moody_together() -> Composition:
    return alone(MoodyTogether(), "moody")


def makers(block_s: float = 0.02) -> Makers:
    return Makers(learner=_nobody, engine=_Made(block_s), rewards=moody, dtype="float32", device="cpu")


def _nobody(*_: object) -> Any:
    raise AssertionError("there is no learner here")


class _Made:
    def __init__(self, block_s: float) -> None:
        self._block_s = block_s

    def __call__(self, store: WeightStore, clock: Clock, device: str) -> Any:
        return SmallEngine(clock, self._block_s)
