"""Asking one reward about one answer: a grade comes back, or an error that says which rollout and why."""

from __future__ import annotations

import math
import numbers
from dataclasses import replace

from tether.errors import RewardError
from tether.ports import Reward
from tether.records import Answer, Grade, Prompt

LARGEST = 1e30
"""Of a reward's size: beyond it advantages and their gradients leave float32."""


def grade(reward: Reward, prompt: Prompt, answer: Answer) -> Grade:
    """What a reward gives an answer; its value is a finite float.

    Raises:
        RewardError: the reward raised or left the program (its exception is the cause), or gave something other than
            a finite number of at most ``LARGEST`` in size.
    """
    where, response, rollout_id = f"rollout {answer.id} of prompt {prompt.id}", answer.text, answer.id
    try:
        given: object = reward(prompt, answer)
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"a reward must give a number for every response; for {where} {_name(reward)} raised "
            f"{type(error).__name__}: {error}; the response was {response!r}",
            rollout_id=rollout_id,
        ) from error
    told = given if isinstance(given, Grade) else Grade(value=0.0)
    value: object = told.value if told is given else given
    number = _number(value)
    if number is None or not math.isfinite(number):
        raise RewardError(
            f"a reward must be a finite number; for {where} {_name(reward)} gave {_shown(value)}; "
            f"return 0.0 for a response that cannot be judged; the response was {response!r}",
            rollout_id=rollout_id,
        )
    if abs(number) > LARGEST:
        raise RewardError(
            f"a reward must lie within +-{LARGEST:g}; for {where} {_name(reward)} gave {number!r}; "
            f"scale it, 0 to 1 is usual; the response was {response!r}",
            rollout_id=rollout_id,
        )
    return replace(told, value=number)


def _number(value: object) -> float | None:
    """A float, from anything that is a single real number (also of numpy or torch); None from anything else."""
    try:
        item = getattr(value, "item", None)
        value = item() if callable(item) else value
        return float(value) if isinstance(value, numbers.Real) else None
    except Exception:  # more than one element, too large for a float, or whatever a user's object raises
        return None


def _shown(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # an int of thousands of digits, or a user's object
        return f"a {type(value).__name__} that cannot be shown"


def _name(reward: object) -> str:
    path = getattr(reward, "path", None)
    return f"reward {path}" if isinstance(path, str) else f"reward {type(reward).__name__}"
