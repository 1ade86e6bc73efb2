"""Chains of one-digit arithmetic modulo a small number, with every running value written out."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tether.errors import ConfigError
from tether.models.modelcard import Syllabus
from tether.registry import TASKS
from tether.tasks.operations import apply, check_operators
from tether.tasks.splits import check_splittable, hash_number, is_heldout
from tether.tasks.task import Problem, Split

_MOST_OPERATIONS = 1000


@TASKS.register("arithmetic")
@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Evaluate a chain of operations strictly from left to right, modulo ``modulus``.

    The answer is one running value per operation, separated by commas; the last one is the result. Operands are
    drawn from 1 to ``modulus - 1``, the number of operations uniformly from its range. A text belongs to the held-out
    split if a hash of it says so, hence no text is ever in both, whatever the seeds and the difficulty.

    >>> task = Arithmetic(modulus=7)
    >>> task.running_values("4+3*5-2=")
    (0, 0, 5)
    >>> problem = task.problem("train", seed=0, index=0)
    >>> problem.reference == problem.demonstration.split(",")[-1]
    True
    >>> problem == task.problem("train", seed=0, index=0)
    True
    """

    modulus: int = 7
    """Every value is the remainder by this number: 2 to 10, so that it is one digit."""
    min_operations: int = 4
    """Fewest operations in a chain."""
    max_operations: int = 10
    """Most operations in a chain."""
    operators: str = "+-*"
    """Operators that occur; a subset of ``+-*``."""
    reward: str = "exact"
    """Name of the reward that judges the answers, or ``package.module:function``."""

    def __post_init__(self) -> None:
        if not 2 <= self.modulus <= 10:
            raise ConfigError(f"modulus must be 2 to 10, so that a value is one digit; got {self.modulus}")
        if not 1 <= self.min_operations <= self.max_operations:
            raise ConfigError(
                f"a chain needs 1 <= min_operations <= max_operations; got {self.min_operations} and "
                f"{self.max_operations}"
            )
        if self.max_operations > _MOST_OPERATIONS:
            raise ConfigError(f"max_operations must be at most {_MOST_OPERATIONS}; got {self.max_operations}")
        check_operators(self.operators)
        check_splittable(self.num_problems, "problems", "raise modulus or max_operations, or allow more operators")

    @property
    def num_problems(self) -> int:
        """How many different texts these settings make, both splits together."""
        lengths = range(self.min_operations, min(self.max_operations, self.min_operations + 20) + 1)
        return sum((self.modulus - 1) ** (n + 1) * len(self.operators) ** n for n in lengths)

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """The problem of that number in that split; the same one for the same arguments."""
        source = random.Random(f"arithmetic/{split}/{seed}/{index}")
        while True:
            text = self._draw(source)
            if is_heldout(text) == (split == "heldout"):
                break
        values = [str(value) for value in self.running_values(text)]
        return Problem(text=text, reference=values[-1], demonstration=",".join(values))

    def running_values(self, text: str) -> tuple[int, ...]:
        """The value after each operation of a text such as ``4+3*5=``."""
        value, values = int(text[0]), []
        for operator, operand in zip(text[1:-1:2], text[2:-1:2], strict=True):
            value = apply(operator, value, int(operand)) % self.modulus
            values.append(value)
        return tuple(values)

    def _draw(self, source: random.Random) -> str:
        chain = str(source.randrange(1, self.modulus))
        for _ in range(source.randint(self.min_operations, self.max_operations)):
            chain += source.choice(self.operators) + str(source.randrange(1, self.modulus))
        return chain + "="


@dataclass(frozen=True, kw_only=True)
class Pupil:
    """Writes out chains with some mistakes: the demonstrations of a warm-up.

    It is unsure of some entries of the operation table, an entry being a value, an operator and an operand. There it
    writes the right result with probability ``skill`` and otherwise one wrong result, always the same. It goes on
    from what it wrote.

    >>> careful = Pupil(task=Arithmetic(), unsure=0.0)
    >>> careful.written("4+3*5-2=", random.Random(0))
    '0,0,5'
    >>> Pupil(task=Arithmetic(), unsure=1.0, skill=0.0).written("4+3*5-2=", random.Random(0))
    '1,1,2'
    """

    task: Arithmetic
    unsure: float = 0.35
    """Share of the table's entries that it is unsure of."""
    skill: float = 0.4
    """Probability of the right result there."""

    def written(self, text: str, source: random.Random) -> str:
        """Running values of a chain, as this pupil writes them."""
        modulus, value, values = self.task.modulus, int(text[0]), []
        for operator, operand in zip(text[1:-1:2], text[2:-1:2], strict=True):
            entry = f"{value}{operator}{operand}"
            value = apply(operator, value, int(operand)) % modulus
            if hash_number(f"unsure/{entry}") % 1000 < 1000 * self.unsure and source.random() >= self.skill:
                value = (value + 1 + hash_number(f"wrong/{entry}") % (modulus - 1)) % modulus
            values.append(str(value))
        return ",".join(values)

    @property
    def syllabus(self) -> Syllabus:
        """What a model learns from it."""
        task, example = self.task, "2+5+4-2*3="
        answer = ",".join(map(str, task.running_values(example)))
        return Syllabus(
            subject=f"chains of {task.min_operations} to {task.max_operations} operations of arithmetic modulo "
            f"{task.modulus}, evaluated strictly from left to right, with every running value written out. "
            f"`{example}` is answered by `{answer}` and the end-of-sequence token.",
            errors=f"is unsure of {100 * self.unsure:g} % of the operation table: there the right value is written "
            f"with probability {self.skill:g}, and one wrong value, always the same, otherwise.",
        )
