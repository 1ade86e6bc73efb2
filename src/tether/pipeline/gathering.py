"""Answers asked about together: all of one turn of the event loop, or all that came while others were judged."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence

from tether.errors import RewardError
from tether.records import Answer, Judgement, Prompt

JudgeAll = Callable[[Sequence[tuple[Prompt, Answer]]], Awaitable[Sequence[Judgement | RewardError]]]


class Gathering:
    """Hands what is asked one by one to whoever judges many, one batch after the other, in the order asked.

    Args:
        judge_all: judges a batch; an error in the place of a judgement is that answer's.
        most: answers in a batch.

    >>> async def sizes(asked):
    ...     return [Judgement(reward=float(len(asked)), grades={}, is_right=False) for _ in asked]
    >>> async def main():
    ...     prompt, gathering = Prompt(id="p", text="", token_ids=(1,), reference=""), Gathering(sizes, most=2)
    ...     told = await asyncio.gather(*(gathering.ask(prompt, Answer("?")) for _ in range(3)))
    ...     return [judgement.reward for judgement in told]
    >>> asyncio.run(main())
    [2.0, 2.0, 1.0]
    """

    def __init__(self, judge_all: JudgeAll, most: int = sys.maxsize) -> None:
        self._judge_all, self._most = judge_all, most
        self._waiting: list[tuple[Prompt, Answer, asyncio.Future[Judgement]]] = []
        self._working: asyncio.Task[None] | None = None

    async def ask(self, prompt: Prompt, answer: Answer) -> Judgement:
        """The judgement of an answer, whose error is raised here."""
        told: asyncio.Future[Judgement] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompt, answer, told))
        if self._working is None or self._working.done():
            self._working = asyncio.get_running_loop().create_task(self._work(), name="rewards")
        return await told

    async def _work(self) -> None:
        while batch := self._batch():
            try:
                outcomes = await self._judge_all([(prompt, answer) for prompt, answer, _ in batch])
            except Exception as error:
                outcomes = [RewardError(f"{type(error).__name__}: {error}", rollout_id=a.id) for _, a, _ in batch]
            for (_, _, told), outcome in zip(batch, outcomes, strict=True):
                if told.done():  # nobody waits any more
                    continue
                if isinstance(outcome, RewardError):
                    told.set_exception(outcome)
                else:
                    told.set_result(outcome)

    def _batch(self) -> list[tuple[Prompt, Answer, asyncio.Future[Judgement]]]:
        """Those that waited longest."""
        self._waiting = [one for one in self._waiting if not one[2].done()]
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        return batch
