"""The parts that a run and an evaluation share: device, reward, judge, prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tether.config.bind import plugin
from tether.errors import ConfigError
from tether.evals.runner import IsCorrect
from tether.models.loading import Vocabulary
from tether.pipeline.rollouts import Judge, seed_of
from tether.ports import GenerationRequest, Reward
from tether.records import Completion, Prompt
from tether.registry import REWARDS
from tether.tasks.prompts import PromptSource
from tether.tasks.task import Split, Task


def device_of(asked: str) -> str:
    """The device a run uses; refuses one that is not there."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(1, device=asked)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(
            f"run.device {asked!r} is not usable: {str(error).splitlines()[0]}; use auto or cpu"
        ) from error
    return asked


def reward_of(name: str) -> Reward:
    """A reward by registered name, or a callable by ``package.module:function``."""
    if name == "python":
        raise ConfigError("task.reward = 'python' does not say which function; give its place, package.module:function")
    table = {"name": "python", "path": name} if ":" in name else {"name": name}
    reward: Reward = plugin(REWARDS, table, "task.reward")
    return reward


def criterion_of(task: Task) -> Reward:
    """The reward that accuracy is measured by, 1 being right: the one the task names, or ``exact`` if it names none."""
    criterion: Reward = REWARDS.build(getattr(task, "criterion", "exact"))
    return criterion


def judge_of(vocabulary: Vocabulary, reward: Reward) -> Judge:
    """Decoding and scoring with a model's tokenizer."""

    def decode(ids: Sequence[int]) -> str:
        return str(
            vocabulary.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    return Judge(reward, decode, frozenset(vocabulary.eos_ids))


def prompts_of(
    task: tuple[str, Task], vocabulary: Vocabulary, max_tokens: int, split: Split, seed: int
) -> PromptSource:
    """A split's prompts, encoded with a model's tokenizer."""
    room = vocabulary.context - max_tokens
    return PromptSource(task, vocabulary.tokenizer, eos_ids=vocabulary.eos_ids, room=room, split=split, seed=seed)


def evaluation_set(
    source: PromptSource, count: int, *, seed: int, temperature: float, max_tokens: int
) -> tuple[list[Prompt], list[GenerationRequest]]:
    """The first ``count`` prompts of a source, each with a request of its own seed."""
    prompts = [source(index) for index in range(count)]
    requests = [
        GenerationRequest(
            id=prompt.id,
            prompt_ids=prompt.token_ids,
            seed=seed_of(seed, -1, index),
            max_tokens=max_tokens,
            temperature=temperature,
        )
        for index, prompt in enumerate(prompts)
    ]
    return prompts, requests


def correct_by(judge: Judge) -> IsCorrect:
    """The accuracy's criterion: the judge's reward is 1, whatever the run is trained on."""

    def is_correct(request: GenerationRequest, prompt: Prompt, completion: Completion) -> bool:
        return judge.rollout(request, prompt, completion)[1] >= 1.0

    return is_correct
