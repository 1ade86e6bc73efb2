"""The data of a run, as far as a recipe can tell: read before anything else, told of, and the same when it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tether.config.parts import prompts_of
from tether.config.recipe import Recipe
from tether.errors import ResumeError
from tether.models.loading import Vocabulary
from tether.tasks.prompts import PromptSource
from tether.tasks.task import Finite

FINGERPRINT = "data"
"""Key under ``derived`` that holds the fingerprint of a finite task's data."""


def check_data(recipe: Recipe) -> None:
    """Read the data of a finite task, and refuse a split that is needed and has no problem."""
    if not isinstance(recipe.task, Finite):
        return
    for split in ("train", "heldout") if recipe.eval.prompts else ("train",):
        if recipe.task.size(split) == 0:
            recipe.task.problem(split, recipe.run.seed, 0)  # which says what to do


def data_notices(recipe: Recipe, prompts: PromptSource, vocabulary: Vocabulary) -> tuple[str, ...]:
    """What a user should know about the data of both splits."""
    if not isinstance(recipe.task, Finite) or not recipe.eval.prompts:
        return prompts.notices
    task, max_tokens = (recipe.task_name, recipe.task), recipe.engine.max_tokens
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
