"""Requests for a prompt, and rollouts from what came back."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tether.errors import RewardError
from tether.pipeline.gathering import Gathering
from tether.ports import GenerationRequest
from tether.records import Answer, Completion, Judgement, Prompt, Truncation
from tether.rewards.composition import Composition

Scorer = Callable[[Prompt, Answer], Awaitable[Judgement]]
"""Asks all rewards about an answer; raises ``RewardError`` naming the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A group whose completions have been asked for."""

    id: str
    index: int
    prompt: Prompt
    requests: tuple[GenerationRequest, ...]
    started_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How completions of a prompt are sampled."""

    seed: int
    """Of the run; every request derives its own from it."""
    group_size: int
    temperature: float
    max_tokens: int
    routing: bool = False
    """Whether the engine reports the experts of every token."""
    truncation: Truncation = Truncation()
    """What is sampled among."""
    kept: bool = False
    """Whether the engine reports that of every token."""


def seed_of(seed: int, *names: int) -> int:
    """A 63-bit seed for a place in the run, the same on every machine.

    >>> seed_of(0, 3, 1) == seed_of(0, 3, 1) != seed_of(0, 1, 3)
    True
    """
    digest = hashlib.blake2b(",".join(map(str, (seed, *names))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def ask(index: int, prompt: Prompt, sampling: Sampling, now: float) -> Asked:
    """The requests of a group; ids and seeds depend on the run's seed and the group's index alone."""
    requests = tuple(
        GenerationRequest(
            id=f"g{index}/{member}",
            prompt_ids=prompt.token_ids,
            seed=seed_of(sampling.seed, index, member),
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            routing=sampling.routing,
            truncation=sampling.truncation,
            kept=sampling.kept,
        )
        for member in range(sampling.group_size)
    )
    return Asked(id=f"g{index}", index=index, prompt=prompt, requests=requests, started_s=now)


@dataclass(frozen=True, slots=True)
class Reader:
    """Makes of a completion what rewards are asked about."""

    decode: Callable[[Sequence[int]], str]
    eos_ids: frozenset[int]

    def text(self, completion: Completion) -> str:
        """The completion without its end-of-sequence token."""
        ids = completion.token_ids.tolist()
        return self.decode(ids[:-1] if ids and ids[-1] in self.eos_ids else ids)

    def answer(self, id: str, completion: Completion) -> Answer:
        """The answer of a rollout."""
        return Answer(self.text(completion), len(completion), completion.finish == "length", id)


def score_here(rewards: Composition) -> Scorer:
    """Asks the rewards in this process, which waits for them: together about what is asked in one turn of the loop, if
    one of them would rather."""

    async def ask_rewards(prompt: Prompt, answer: Answer) -> Judgement:
        return rewards(prompt, answer)

    async def ask_together(asked: Sequence[tuple[Prompt, Answer]]) -> list[Judgement | RewardError]:
        return rewards.judge_all(asked)

    return Gathering(ask_together).ask if rewards.gathers else ask_rewards
