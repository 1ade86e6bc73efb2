"""The parts that a run and an evaluation share: device, reader, prompts."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tether.errors import ConfigError
from tether.evals.runner import IsCorrect
from tether.models.loading import Vocabulary
from tether.pipeline.rollouts import Reader, seed_of
from tether.ports import GenerationRequest
from tether.records import Completion, Prompt
from tether.rewards.composition import Composition
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


def reader_of(vocabulary: Vocabulary) -> Reader:
    """Decoding with a model's tokenizer."""

    def decode(ids: Sequence[int]) -> str:
        return str(
            vocabulary.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )

    return Reader(decode, frozenset(vocabulary.eos_ids))


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


def correct_by(reader: Reader, criterion: Composition) -> IsCorrect:
    """The accuracy's criterion, whatever the run is trained on."""

    def is_correct(request: GenerationRequest, prompt: Prompt, completion: Completion) -> bool:
        return criterion(prompt, reader.answer(request.id, completion)).is_right

    return is_correct
