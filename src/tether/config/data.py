"""The data of a run, as far as a recipe can tell: read before anything else, told of, and the same when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tether.config.parts import prompts_of
from tether.config.recipe import Recipe
from tether.errors import ResumeError
from tether.models.loading import Vocabulary
from tether.registry import TASKS
from tether.tasks.prompts import PromptSource
from tether.tasks.task import Finite, Split, Task

FINGERPRINT = "data"
"""Key under ``derived`` that holds the fingerprint of a finite task's data."""


def check_data(recipe: Recipe) -> None:
    """Read the data of finite tasks, and refuse what the first problem of each split that is needed would refuse."""
    needed: list[tuple[Task, Split]] = [(recipe.task, "train")]
    if recipe.eval.prompts:
        needed.append((asked_of(recipe)[1], "heldout"))
    for task, split in needed:
        if isinstance(task, Finite):
            task.problem(split, recipe.run.seed, 0)  # which says what to do


def asked_of(recipe: Recipe) -> tuple[str, Task]:
    """The task that evaluations ask, with its name: one of their own, or the one trained on."""
    own = recipe.eval.task
    return (recipe.task_name, recipe.task) if own is None else (TASKS.name_of(own), own)


def data_notices(recipe: Recipe, prompts: PromptSource, vocabulary: Vocabulary) -> tuple[str, ...]:
    """What a user should know about the data of what is trained on and what is asked."""
    task = asked_of(recipe)
    if not isinstance(task[1], Finite) or not recipe.eval.prompts:
        return prompts.notices
    max_tokens = recipe.eval.max_tokens or recipe.engine.max_tokens
    heldout = prompts_of(task, vocabulary, max_tokens, "heldout", recipe.run.seed)
    return tuple(dict.fromkeys((*prompts.notices, *heldout.notices)))


def with_data(recipe: Recipe) -> dict[str, Any]:
    """A resolved recipe with the fingerprint of its data."""
    resolved = recipe.resolved()
    if isinstance(recipe.task, Finite):
        resolved["derived"][FINGERPRINT] = recipe.task.fingerprint()
    return resolved


def check_same_data(recipe: Recipe, config: Mapping[str, Any]) -> None:
    """Refuse to go on with data that are not those that the run began with."""
    before = config.get("derived", {}).get(FINGERPRINT)
    if before is None or not isinstance(recipe.task, Finite):
        return
    if (now := recipe.task.fingerprint()) != before:
        raise ResumeError(
            f"a run goes on with the data that it began with: their fingerprint was {before} and is {now} now, so "
            "another problem would come next; put the files back as they were, or start a new run"
        )
