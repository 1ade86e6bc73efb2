"""From problems to prompts: encoded once, checked against the context before anything is generated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tether.errors import DataError
from tether.records import Prompt
from tether.tasks.task import Finite, Problem, Split, Task


@runtime_checkable
class Encoder(Protocol):
    """The part of a tokenizer that prompts need."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, with the specials that the tokenizer puts in front."""
        ...


@runtime_checkable
class ChatEncoder(Encoder, Protocol):
    """A tokenizer that knows how a chat is written."""

    @property
    def chat_template(self) -> Any:
        """The template, or None where the model has none."""
        ...

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, add_generation_prompt: bool, tokenize: bool, return_dict: bool
    ) -> Any:
        """Ids of a chat up to where the model's turn begins; all specials are the template's."""
        ...


class PromptSource:
    """The prompts of one split of a task, by index.

    Args:
        task: with its name, which becomes part of every prompt's id.
        encoder: the model's tokenizer; an end-of-sequence id that it appends is taken off again. A problem that is
            a chat needs one with a chat template, which is applied once and adds all specials itself.
        eos_ids: the model's end-of-sequence ids.
        room: most prompt tokens, that is, the context less ``max_tokens``. Of a finite task every problem is measured
            now; of another one each when it is asked for.
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
        self.notices: tuple[str, ...] = ()
        """What a user should know about the task's data."""
        if isinstance(self._task, Finite):
            self._task = self._task.fitting(split, lambda problem: len(self._ids(problem)), room)
            self.notices = self._task.notices() if isinstance(self._task, Finite) else ()

    @property
    def size(self) -> int | None:
        """How many different prompts there are; ``None`` where the task does not tell, or there is no end of them."""
        return self._task.size(self._split) if isinstance(self._task, Finite) else None

    def __call__(self, index: int) -> Prompt:
        """The prompt at an index; the same for the same split, seed and index."""
        problem = self._task.problem(self._split, self._seed, index)
        ids = self._ids(problem)
        name = f"{self._name}/{self._split}/{self._seed}/{index}"
        if not ids:
            raise DataError(f"prompt {name} has no tokens (text {problem.text!r}); an engine needs at least one")
        if len(ids) > self._room:
            raise DataError(
                f"prompt {name} has {len(ids)} tokens, more than the {self._room} that the model's context leaves "
                "beside engine.max_tokens; lower engine.max_tokens, make the prompts shorter, or use a model with a "
                "longer context"
            )
        known = f"{self._name}/{problem.key}" if problem.key else ""
        return Prompt(
            id=name,
            text=problem.text,
            token_ids=tuple(ids),
            reference=problem.reference,
            problem=known,
            pass_rate=problem.pass_rate,
        )

    def _ids(self, problem: Problem) -> list[int]:
        return self._chat(problem) if problem.chat else self._plain(problem)

    def _plain(self, problem: Problem) -> list[int]:
        try:
            ids = list(self._encoder.encode(problem.text))
        except Exception as error:  # a tokenizer without a token for the unknown raises what it likes
            raise DataError(
                f"a model's tokenizer must know every character of its prompts; it refuses {problem.text!r} of task "
                f"{self._name!r} ({error}): take another task, or a model that can read this one"
            ) from error
        while ids and ids[-1] in self._eos:
            ids.pop()
        return ids

    def _chat(self, problem: Problem) -> list[int]:
        """The ids of the template itself: ``encode`` on its text would put a second set of specials in front."""
        encoder = self._encoder
        if not isinstance(encoder, ChatEncoder) or not encoder.chat_template:
            raise DataError(
                f"task {self._name!r} asks in the model's chat format, and this model has no chat template; "
                "take a model that was tuned to chat, or set task.chat=false"
            )
        said = [{"role": "system", "content": problem.system}] if problem.system else []
        said.append({"role": "user", "content": problem.text})
        try:
            ids = encoder.apply_chat_template(said, add_generation_prompt=True, tokenize=True, return_dict=False)
        except Exception as error:  # a template is a program of the model's makers: it raises what it likes
            raise DataError(
                f"the chat template of this model refuses a prompt of task {self._name!r} with the roles "
                f"{', '.join(turn['role'] for turn in said)}: {error}; leave out task.system, or set task.chat=false"
            ) from error
        return [int(token) for token in ids]
