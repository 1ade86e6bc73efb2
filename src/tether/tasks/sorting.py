"""Digits to be put in order: the answer is as long as the list, and ends by itself."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from tether.errors import ConfigError
from tether.models.modelcard import Syllabus
from tether.registry import TASKS
from tether.tasks.splits import check_splittable, hash_number, is_heldout
from tether.tasks.task import Problem, Split

_DIGITS = "0123456789"
_LONGEST = 1000


@TASKS.register("sorting")
@dataclass(frozen=True, kw_only=True)
class Sorting:
    """Write the digits of a list in rising order, each as often as it occurs.

    The length of a list is drawn uniformly from its range, the digits uniformly from the first ``symbols`` ones. The
    whole answer is judged: there is no comma in it, so the reward ``exact`` compares all of it. A list belongs to the
    held-out split if a hash of its *answer* says so, hence no list is in one split and a rearrangement of it in the
    other, whatever the seeds and the difficulty.

    >>> Sorting().in_order("31415:")
    '11345'
    >>> problem = Sorting(min_length=5, max_length=5).problem("train", seed=0, index=0)
    >>> problem.reference == problem.demonstration == Sorting().in_order(problem.text)
    True
    """

    symbols: int = 10
    """How many different digits occur, from 0 on: 3 to 10."""
    min_length: int = 3
    """Fewest digits in a list."""
    max_length: int = 10
    """Most digits in a list."""
    reward: str = "exact"
    """Name of the reward that judges the answers, or ``package.module:function``."""

    def __post_init__(self) -> None:
        if not 3 <= self.symbols <= len(_DIGITS):  # long lists of two digits have too few answers that are likely
            raise ConfigError(f"symbols must be 3 to {len(_DIGITS)}; got {self.symbols}")
        if not 1 <= self.min_length <= self.max_length:
            raise ConfigError(
                f"a list needs 1 <= min_length <= max_length; got {self.min_length} and {self.max_length}"
            )
        if self.max_length > _LONGEST:
            raise ConfigError(f"max_length must be at most {_LONGEST}; got {self.max_length}")
        check_splittable(self.num_answers, "answers", "raise symbols or max_length")

    @property
    def num_answers(self) -> int:
        """How many different sorted lists these settings make, both splits together."""
        return sum(math.comb(n + self.symbols - 1, n) for n in range(self.min_length, self.max_length + 1))

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """The problem of that number in that split; the same one for the same arguments."""
        source = random.Random(f"sorting/{split}/{seed}/{index}")
        while True:
            length = source.randint(self.min_length, self.max_length)
            text = "".join(source.choices(_DIGITS[: self.symbols], k=length)) + ":"
            answer = self.in_order(text)
            if is_heldout(answer) == (split == "heldout"):
                return Problem(text=text, reference=answer, demonstration=answer)

    def in_order(self, text: str) -> str:
        """The answer to a text such as ``31415:``."""
        return "".join(sorted(text[:-1]))


@dataclass(frozen=True, kw_only=True)
class Pupil:
    """Sorts with some mistakes: the demonstrations of a warm-up.

    It is unsure of the order of some pairs of digits. Where the two smallest different digits that are left are such
    a pair, it writes the smaller one with probability ``skill`` and the other one otherwise. It goes on with what is
    left, so it never loses a digit.

    >>> Pupil(task=Sorting(), unsure=0.0).written("31415:", random.Random(0))
    '11345'
    >>> Pupil(task=Sorting(), unsure=1.0, skill=0.0).written("31415:", random.Random(0))
    '34511'
    """

    task: Sorting
    unsure: float = 0.35
    """Share of the pairs of digits that it is unsure of."""
    skill: float = 0.4
    """Probability of the right order there."""

    def written(self, text: str, source: random.Random) -> str:
        """The digits of a list, as this pupil orders them."""
        left, order = sorted(text[:-1]), ""
        while left:
            smallest, *others = sorted(set(left))
            is_unsure = bool(others) and hash_number(f"unsure/{smallest}{others[0]}") % 1000 < 1000 * self.unsure
            taken = others[0] if is_unsure and source.random() >= self.skill else smallest
            left.remove(taken)
            order += taken
        return order

    @property
    def syllabus(self) -> Syllabus:
        """What a model learns from it."""
        task, example = self.task, "31415:"
        return Syllabus(
            subject=f"lists of {task.min_length} to {task.max_length} digits, written in rising order. `{example}` is "
            f"answered by `{task.in_order(example)}` and the end-of-sequence token.",
            errors=f"is unsure of {100 * self.unsure:g} % of the pairs of digits: where the two smallest that are left "
            f"are such a pair, the right one is written with probability {self.skill:g}, and the other one otherwise.",
        )
