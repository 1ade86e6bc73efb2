"""From problems to prompts: encoded once, checked against the context before anything is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tether.errors import DataError
from tether.records import Prompt
from tether.tasks.task import Split, Task


@runtime_checkable
class Encoder(Protocol):
    """The part of a tokenizer that prompts need."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the specials that the tokenizer puts in front."""
        ...


class PromptSource:
    """The prompts of one split of a task, by index.

    Args:
        task: with its name, which becomes part of every prompt's id.
        encoder: the model's tokenizer; an end-of-sequence id that it appends is taken off again.
        eos_ids: the model's end-of-sequence ids.
        room: most prompt tokens, that is, the context less ``max_tokens``.
    """

    def __init__(
        self, task: tuple[str, Task], encoder: Encoder, *, eos_ids: Sequence[int], room: int, split: Split, seed: int
    ) -> None:
        if room < 1:
            raise DataError(
                f"engine.max_tokens leaves {room} tokens of the model's context to the prompt; it must leave at least "
                "1: lower it, or use a model with a longer context"
            )
        self._name, self._task = task
        self._encoder = encoder
        self._eos = frozenset(eos_ids)
        self._room = room
        self._split: Split = split
        self._seed = seed

    def __call__(self, index: int) -> Prompt:
        """The prompt at an index; the same for the same split, seed and index."""
        problem = self._task.problem(self._split, self._seed, index)
        ids = list(self._encoder.encode(problem.text))
        while ids and ids[-1] in self._eos:
            ids.pop()
        name = f"{self._name}/{self._split}/{self._seed}/{index}"
        if not ids:
            raise DataError(f"prompt {name} has no tokens (text {problem.text!r}); an engine needs at least one")
        if len(ids) > self._room:
            raise DataError(
                f"prompt {name} has {len(ids)} tokens, more than the {self._room} that the model's context leaves "
                "beside engine.max_tokens; lower engine.max_tokens, make the prompts shorter, or use a model with a "
                "longer context"
            )
        return Prompt(id=name, text=problem.text, token_ids=tuple(ids), reference=problem.reference)
