"""What a task is: problems that can be made again from a split, a seed and an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Split = Literal["train", "heldout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A question with what it is judged by."""

    text: str
    """What the policy sees."""
    reference: str
    """What the reward compares with; never shown to the policy."""
    demonstration: str
    """A right answer in full, without the end-of-sequence token. Only the warm-up reads it; empty where none exists."""
    chat: bool = False
    """Whether the text is what a user says in a chat: the prompt is then made by the model's own chat template."""
    system: str = ""
    """What the system says before it in a chat; empty: whatever the template puts there by itself."""
    key: str = ""
    """Which problem of its source it is, the same each time that it is asked; empty where a source does not tell."""


@runtime_checkable
class Task(Protocol):
    """A source of problems; a frozen dataclass whose fields are its difficulty."""

    @property
    def reward(self) -> str:
        """Name of the reward that judges its answers, or ``package.module:function``."""
        ...

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """The same problem for the same arguments; no text is in both splits, whatever the seeds."""
        ...


@runtime_checkable
class Finite(Task, Protocol):
    """A task that has so many problems and no more, such as those of a file."""

    def size(self, split: Split) -> int | None:
        """How many different problems a split has: those at the indices below it are all of them, each once. ``None``
        where there is no end of them."""
        ...

    def fitting(self, split: Split, num_tokens: Callable[[Problem], int], room: int) -> Task:
        """The task without the problems of a split that make a prompt of more tokens than there is room for, or an
        error that says how many there are."""
        ...

    def notices(self) -> tuple[str, ...]:
        """What a user should know about the data, a sentence each."""
        ...

    def fingerprint(self) -> str:
        """Another one if the data are others, by which a run that goes on knows that they are not."""
        ...
