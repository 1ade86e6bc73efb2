"""A penalty for saying the same again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tether.errors import ConfigError
from tether.records import Answer, Grade, Prompt
from tether.registry import REWARDS


@REWARDS.register("repetition")
@dataclass(frozen=True)
class Repetition:
    """``-(1 - distinct / all)`` over the runs of ``size`` units in a row: ``0`` if no run comes twice, near ``-1`` if
    one does all along.

    The n-gram penalty in the code of arXiv:2502.03373, with a largest penalty of 1: give the part a weight. There the
    units are the words between white space, in lower case; ``characters`` are for scripts that put no space between
    words. An answer with fewer units than ``size`` has no run, and 0. (The penalty that the paper itself describes is
    one of single tokens, which a reward of an answer cannot give.)

    >>> prompt = Prompt(id="p", text="?", token_ids=(1,), reference="3")
    >>> texts = "so it is", "so it is so it is", "no no no no no", ""
    >>> [Repetition(size=2)(prompt, Answer(text)).value for text in texts]
    [0.0, -0.4, -0.75, 0.0]
    """

    size: int = 3
    """Units of a run."""
    units: Literal["words", "characters"] = "words"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= 100:
            raise ConfigError(f"size of the reward 'repetition' must lie in 1 .. 100; got {self.size}")

    def __call__(self, prompt: Prompt, answer: Answer) -> Grade:
        """A number above -1 and up to 0."""
        text = answer.text.lower()
        units: str | tuple[str, ...] = tuple(text.split()) if self.units == "words" else text
        runs = [units[n : n + self.size] for n in range(len(units) - self.size + 1)]
        if not runs:
            return Grade(value=0.0)
        return Grade(value=(len(set(runs)) - len(runs)) / len(runs))
