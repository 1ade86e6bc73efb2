"""Asking a reward about one response: a number comes back, or an error that says which rollout and why."""

from __future__ import annotations

import math
import numbers

from tether.errors import RewardError
from tether.ports import Reward
from tether.records import Prompt


def score(reward: Reward, prompt: Prompt, response: str, rollout_id: str) -> float:
    """The reward of a response, as a finite float.

    Raises:
        RewardError: the reward raised (its exception is the cause), or gave something other than a finite number.
    """
    where = f"rollout {rollout_id} of prompt {prompt.id}"
    try:
        value: object = reward(prompt, response)
    except Exception as error:
        raise RewardError(
            f"a reward must give a number for every response; for {where} {_name(reward)} raised "
            f"{type(error).__name__}: {error}; the response was {response!r}"
        ) from error
    number = _number(value)
    if number is None or not math.isfinite(number):
        raise RewardError(
            f"a reward must be a finite number; for {where} {_name(reward)} gave {value!r}; "
            f"return 0.0 for a response that cannot be judged; the response was {response!r}"
        )
    return number


def _number(value: object) -> float | None:
    """A float, from anything that is a single real number (also of numpy or torch); None from anything else."""
    item = getattr(value, "item", None)
    if callable(item):
        try:
            value = item()
        except (ValueError, RuntimeError):  # more than one element
            return None
    return float(value) if isinstance(value, numbers.Real) else None


def _name(reward: object) -> str:
    path = getattr(reward, "path", None)
    return f"reward {path}" if isinstance(path, str) else f"reward {type(reward).__name__}"
