"""The parts that a run and an evaluation share: device, reader, prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from tether.errors import ConfigError, DataError, RewardError
from tether.evals.evaluation import Protocol
from tether.evals.options import EvalOptions
from tether.evals.runner import Judge, Mark
from tether.models.loading import Vocabulary
from tether.pipeline.rollouts import Reader, seed_of
from tether.ports import GenerationRequest
from tether.records import Completion, Prompt, Truncation
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


def protocol_of(options: EvalOptions, task: str, criterion: Composition, *, seed: int, max_tokens: int) -> Protocol:
    """How an evaluation asks; ``max_tokens`` is the engine's."""
    return Protocol(
        task=task,
        criterion=criterion.decider.label,
        seed=seed,
        samples=options.samples,
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens or max_tokens,
    )


def evaluation_set(source: PromptSource, most: int, protocol: Protocol) -> tuple[list[Prompt], list[GenerationRequest]]:
    """The first prompts of a source, of a finite one at most all of them, and for each as many requests as it gets
    answers, with seeds of their own.

    Raises ``DataError`` if a problem would be asked twice.
    """
    prompts = [source(index) for index in range(most if source.size is None else min(most, source.size))]
    known = Counter(prompt.problem for prompt in prompts if prompt.problem)
    if twice := [name for name, times in known.items() if times > 1]:
        raise DataError(
            f"an evaluation asks each problem once, with several samples if need be; of {len(prompts)} prompts "
            f"{twice[0]} would come again: ask fewer prompts"
        )
    requests = [
        GenerationRequest(
            id=f"{prompt.id}/{sample}",
            prompt_ids=prompt.token_ids,
            seed=seed_of(protocol.seed, -1, index, *([sample] if sample else [])),  # the first as when it was alone
            max_tokens=protocol.max_tokens,
            temperature=protocol.temperature,
            truncation=Truncation(top_p=protocol.top_p),
        )
        for index, prompt in enumerate(prompts)
        for sample in range(protocol.samples)
    ]
    return prompts, requests


def judge_by(reader: Reader, criterion: Composition) -> Judge:
    """The accuracy's criterion, whatever the run is trained on. What it raises is told of the sample."""
    label = criterion.decider.label

    def judge(request: GenerationRequest, prompt: Prompt, completion: Completion) -> Mark:
        try:
            judgement = criterion(prompt, reader.answer(request.id, completion))
        except RewardError as error:
            return Mark(is_right=False, status="", failure=str(error))
        grade, is_right = judgement.grades[label], judgement.is_right
        return Mark(is_right, grade.status or ("correct" if is_right else "wrong"), grade.extracted)

    return judge
