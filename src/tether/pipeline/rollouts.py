"""Requests for a prompt, and rollouts from what came back."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from tether.ports import GenerationRequest, Reward
from tether.records import Completion, Prompt, Truncation
from tether.rewards.scoring import score

Scorer = Callable[[Prompt, str, str], Awaitable[float]]
"""Prompt, text and rollout id to a reward; raises ``RewardError`` naming the rollout."""


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
class Judge:
    """Decodes completions and scores them.

    A completion cut at ``max_tokens`` gets 0 from a reward that says ``needs_end``, as ``exact`` does, without being
    asked; every other reward judges it as it is.
    """

    reward: Reward
    decode: Callable[[Sequence[int]], str]
    eos_ids: frozenset[int]

    def text(self, completion: Completion) -> str:
        """The completion without its end-of-sequence token."""
        ids = completion.token_ids.tolist()
        return self.decode(ids[:-1] if ids and ids[-1] in self.eos_ids else ids)

    def is_cut(self, completion: Completion) -> bool:
        """Whether it gets 0 without being asked about."""
        return completion.finish == "length" and bool(getattr(self.reward, "needs_end", False))

    def rollout(self, request: GenerationRequest, prompt: Prompt, completion: Completion) -> tuple[str, float]:
        """Text and reward of one completion; raises ``RewardError`` naming the rollout."""
        text = self.text(completion)
        if self.is_cut(completion):
            return text, 0.0
        return text, score(self.reward, prompt, text, request.id)


def score_here(reward: Reward) -> Scorer:
    """Asks a reward in this process, which waits for it."""

    async def ask_reward(prompt: Prompt, text: str, rollout_id: str) -> float:
        return score(reward, prompt, text, rollout_id)

    return ask_reward
