"""An engine that gives answers laid down before: what an evaluation makes of them can be computed by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from tether.errors import RewardError
from tether.evals.evaluation import Evaluation, Protocol
from tether.evals.runner import Evaluator, Mark
from tether.ports import EngineCapabilities, GenerationRequest, InFlight, Publication
from tether.records import Completion, Prompt
from tether.weights.memory import MemoryStore

CUT = 7
"""Most tokens of an answer."""


class FixedEngine:
    """Answers request ``p/i/s`` with the number in row i, column s; its version may move on meanwhile."""

    def __init__(self, answers: Sequence[Sequence[int]], versions: Sequence[int] = ()) -> None:
        self.answers, self.versions = answers, versions
        self.version, self.asked = 0, 0

    capabilities = EngineCapabilities(logp="processed", token_versions=True)
    busy_s = 0.0

    async def generate(self, request: GenerationRequest) -> Completion:
        return self._completion(request)

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        raise NotImplementedError

    async def progress(self) -> dict[str, Completion]:
        return {}

    def in_flight(self) -> None:
        return None

    def restore(self, flight: Any) -> None:
        raise NotImplementedError

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        return [self._completion(request) for request in requests]

    def _completion(self, request: GenerationRequest) -> Completion:
        row, sample = (int(part) for part in request.id.split("/")[1:])
        version = self.versions[self.asked] if self.versions else self.version
        self.asked += 1
        ids = np.array([self.answers[row][sample]] * (1 + sample), np.int32)
        return Completion(
            token_ids=ids,
            logp=np.zeros(len(ids), np.float32),
            version=np.full(len(ids), version, np.int32),
            finish="length" if len(ids) >= CUT else "stop",
        )


def judged(request: GenerationRequest, prompt: Prompt, completion: Completion) -> Mark:
    """Right if it is the reference; 0 is no answer, and a negative one is more than the criterion can bear."""
    answer = int(completion.token_ids[-1])
    if answer < 0:
        return Mark(is_right=False, status="", failure=str(RewardError(f"{request.id} is too much")))
    is_right = str(answer) == prompt.reference
    return Mark(
        is_right, "correct" if is_right else "wrong" if answer else "no_answer", str(answer) if answer else None
    )


def evaluation_of(
    answers: Sequence[Sequence[int]], references: Sequence[int], versions: Sequence[int] = (), **evaluator: Any
) -> Evaluation:
    """What comes of answers ``[n][k]``."""
    return asyncio.run(evaluator_of(answers, references, versions, **evaluator)(0, {}))


def evaluator_of(
    answers: Sequence[Sequence[int]], references: Sequence[int], versions: Sequence[int] = (), task: str = "aime"
) -> Evaluator:
    k = len(answers[0])
    protocol = Protocol(task=task, criterion="own", seed=0, samples=k, temperature=1.0, max_tokens=CUT)
    prompts = [
        Prompt(id=f"p/{row}", text="?", token_ids=(1,), reference=str(right), problem=f"{task}/{row}")
        for row, right in enumerate(references)
    ]
    requests = [
        GenerationRequest(id=f"{prompt.id}/{s}", prompt_ids=(1,), seed=s, max_tokens=CUT, temperature=1.0)
        for prompt in prompts
        for s in range(k)
    ]
    return Evaluator(FixedEngine(answers, versions), MemoryStore("float32"), protocol, (prompts, requests), judged)
