"""Evaluation: held-out prompts through an engine of its own, so that training is not disturbed by being watched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from tether.evals.evaluation import Evaluation, Protocol, joined
from tether.journal.evaluated import FAILED
from tether.ports import GenerationRequest, RolloutEngine, WeightStore
from tether.records import Completion, Prompt

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """What one sample was judged to be."""

    is_right: bool
    status: str
    extracted: str | None = None
    failure: str = ""
    """What the criterion raised, where it did: the sample is then neither right nor wrong."""


Judge = Callable[[GenerationRequest, Prompt, Completion], Mark]


class Evaluator:
    """Asks the same held-out questions of any version.

    Every sample has a request with a seed of its own, so two versions are compared on the same prompts and the same
    random numbers.

    Args:
        prompts: the problems, n of them.
        requests: of every problem its k samples, problem by problem.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        store: WeightStore,
        protocol: Protocol,
        questions: tuple[Sequence[Prompt], Sequence[GenerationRequest]],
        judge: Judge,
    ) -> None:
        self._engine, self._store, self._protocol = engine, store, protocol
        self._prompts, self._requests = tuple(questions[0]), tuple(questions[1])
        self._judge = judge
        asked, k = len(self._requests), protocol.samples
        if asked != len(self._prompts) * k:
            raise ValueError(f"each of {len(self._prompts)} prompts needs {k} requests; got {asked} in all")

    async def __call__(self, version: int, weights: Mapping[str, Tensor]) -> Evaluation:
        """Load the weights if they are new, sample every prompt, judge.

        Raises ``RewardError`` if no sample at all could be judged.
        """
        return joined([piece async for piece in self.pieces(version, weights, len(self._prompts))])

    async def pieces(self, version: int, weights: Mapping[str, Tensor], size: int) -> AsyncIterator[Evaluation]:
        """The same, so many prompts at a time, for who wants to see what there is; ``joined`` makes one of them."""
        if version != self._engine.version:
            await self._engine.load(self._store.publish(version, weights))
        k = self._protocol.samples
        for first in range(0, len(self._prompts), size):
            prompts, requests = self._prompts[first : first + size], self._requests[first * k : (first + size) * k]
            completions = await self._engine.answer(requests)
            yield self._judged(version, prompts, requests, completions)

    def _judged(
        self,
        version: int,
        prompts: Sequence[Prompt],
        requests: Sequence[GenerationRequest],
        completions: Sequence[Completion],
    ) -> Evaluation:
        k = self._protocol.samples
        whose = [prompt for prompt in prompts for _ in range(k)]
        marks = [self._judge(r, p, c) for r, p, c in zip(requests, whose, completions, strict=True)]
        versions = [int(c.version[-1]) if len(c) else self._engine.version for c in completions]
        shape = (len(prompts), k)
        return Evaluation(
            protocol=self._protocol,
            version=version,
            prompt_ids=tuple(prompt.id for prompt in prompts),
            problems=tuple(prompt.problem for prompt in prompts),
            references=tuple(prompt.reference for prompt in prompts),
            versions=np.array(versions, np.int64).reshape(shape),
            correct=np.array([mark.is_right for mark in marks], np.bool_).reshape(shape),
            extracted=tuple(_rows([mark.extracted for mark in marks], k)),
            status=tuple(_rows([FAILED if mark.failure else mark.status for mark in marks], k)),
            length=np.array([len(c) for c in completions], np.int64).reshape(shape),
            truncated=np.array([c.finish == "length" for c in completions], np.bool_).reshape(shape),
            failure=next((mark.failure for mark in marks if mark.failure), ""),
        )


def _rows(entries: Sequence[T], k: int) -> Iterator[tuple[T, ...]]:
    return (tuple(entries[first : first + k]) for first in range(0, len(entries), k))
