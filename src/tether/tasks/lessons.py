"""Lessons of a warm-up: questions of the training split as a pupil answers them, and exams from the held-out split."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tether.models.modelcard import Syllabus
from tether.rewards.exact import last_value
from tether.tasks.task import Task

_EXAM_SEED = 20_000  # far from the seeds of runs, so that an exam is not what a run is evaluated on


@runtime_checkable
class Pupil(Protocol):
    """Answers the questions of a task with some mistakes, always the same ones."""

    @property
    def task(self) -> Task:
        """Where the questions come from."""
        ...

    @property
    def syllabus(self) -> Syllabus:
        """What a model learns from it, in words."""
        ...

    def written(self, text: str, source: random.Random) -> str:
        """Its answer to a question."""
        ...


@dataclass(frozen=True)
class Course:
    """What a model learns from a pupil, and is examined in by the task itself.

    >>> from tether.tasks.sorting import Sorting, Pupil as Sorter
    >>> course = Course(Sorter(task=Sorting(), unsure=0.0))
    >>> course.lesson(seed=0, index=0)
    ('748431497:', '134447789')
    >>> course.is_right("0388", "0388"), course.is_right("0388", "0838")
    (True, False)
    """

    pupil: Pupil

    @property
    def syllabus(self) -> Syllabus:
        """The pupil's."""
        return self.pupil.syllabus

    def lesson(self, seed: int, index: int) -> tuple[str, str]:
        """A question of the training split and what the pupil writes."""
        text = self.pupil.task.problem("train", seed, index).text
        return text, self.pupil.written(text, random.Random(f"pupil/{seed}/{index}"))

    def exam(self, index: int) -> tuple[str, str]:
        """A held-out question and its right answer."""
        problem = self.pupil.task.problem("heldout", _EXAM_SEED, index)
        return problem.text, problem.demonstration

    def is_right(self, answer: str, response: str) -> bool:
        """Whether the last values agree, as the reward ``exact`` has it."""
        return last_value(response) == last_value(answer)
