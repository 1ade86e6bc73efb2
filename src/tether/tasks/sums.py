"""One operation on two whole numbers, asked in words in the chat format of a pre-trained model."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from tether.errors import ConfigError
from tether.registry import TASKS
from tether.tasks.operations import apply, check_operators
from tether.tasks.splits import check_splittable, is_heldout
from tether.tasks.task import Problem, Split

_LARGEST = 10**6


@TASKS.register("sums")
@dataclass(frozen=True, kw_only=True)
class Sums:
    """``What is 7 + 5?``, for a model that has been taught to chat.

    Operator and operands are drawn uniformly, operands from 1 to ``largest``; a difference is asked with the larger
    number first, so that no result is negative. A problem belongs to the held-out split if a hash of it says so, with
    its operands in order: ``7 + 5`` and ``5 + 7`` are always in the same one. There is no demonstration and no
    warm-up: the model has to be pre-trained.

    >>> problem = Sums(operators="+").problem("train", seed=0, index=1)
    >>> problem.text, problem.reference
    ('What is 2 + 12?', '14')
    >>> problem == Sums(operators="+").problem("train", seed=0, index=1)
    True
    """

    criterion: ClassVar[str] = "number"
    """Name of the reward that decides what is right when accuracy is measured."""

    largest: int = 20
    """Largest operand."""
    operators: str = "+-"
    """Operators that occur; a subset of ``+-*``."""
    chat: bool = True
    """Ask in the model's chat format; without it the bare question is the prompt."""
    system: str = ""
    """System message of the chat; empty: whatever the chat template puts there by itself."""
    suffix: str = ""
    """What follows the question, such as ``Answer with the number.``"""
    reward: str = "number"
    """Name of the reward that judges the answers, or ``package.module:function``."""

    def __post_init__(self) -> None:
        if not 1 <= self.largest <= _LARGEST:
            raise ConfigError(f"largest must be 1 to {_LARGEST}; got {self.largest}")
        check_operators(self.operators)
        check_splittable(self.num_problems, "problems", "raise largest, or allow more operators")
        if self.system and not self.chat:
            raise ConfigError(f"a system message needs chat = true; got system {self.system!r} with chat = false")

    @property
    def num_problems(self) -> int:
        """How many different problems these settings make, both splits together, whatever the order of operands."""
        return len(self.operators) * self.largest * (self.largest + 1) // 2

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """The problem of that number in that split; the same one for the same arguments."""
        source = random.Random(f"sums/{split}/{seed}/{index}")
        while True:
            operator = source.choice(self.operators)
            one, other = source.randint(1, self.largest), source.randint(1, self.largest)
            high, low = max(one, other), min(one, other)
            if is_heldout(f"{high}{operator}{low}") == (split == "heldout"):
                break
        left, right = (high, low) if operator == "-" else (one, other)
        question = f"What is {left} {operator} {right}?"
        return Problem(
            text=f"{question} {self.suffix}" if self.suffix else question,
            reference=str(apply(operator, left, right)),
            demonstration="",
            chat=self.chat,
            system=self.system,
        )
