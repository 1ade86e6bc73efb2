"""Asking a reward about answers: for each a grade comes back, or an error that says which rollout and why."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import replace

from tether.errors import RewardError
from tether.ports import Reward
from tether.records import Answer, Grade, Prompt

LARGEST = 1e30
"""Of a reward's size: beyond it advantages and their gradients leave float32."""
Asked = tuple[Prompt, Answer]
"""What rewards are asked about."""


def grade(reward: Reward, prompt: Prompt, answer: Answer) -> Grade:
    """What a reward gives an answer; its value is a finite float.

    Raises:
        RewardError: the reward raised or left the program (its exception is the cause), or gave something other than
            a finite number of at most ``LARGEST`` in size.
    """
    (told,) = grades(reward, [(prompt, answer)])
    if isinstance(told, RewardError):
        raise told
    return told


def grades(reward: Reward, asked: Sequence[Asked]) -> list[Grade | RewardError]:
    """What a reward gives each of several answers, or the error that ``grade`` would raise; one that says ``gathers``
    is asked in one call, and what it raises there is the error of each.

    >>> prompt = Prompt(id="p", text="1+2=", token_ids=(1,), reference="3")
    >>> size, bad = grades(lambda prompt, answer: 1 / len(answer.text), [(prompt, Answer("ab")), (prompt, Answer(""))])
    >>> size.value, type(bad.__cause__).__name__
    (0.5, 'ZeroDivisionError')
    """
    if not asked:
        return []
    if not getattr(reward, "gathers", False):
        return [_checked(reward, one, _given(reward, *one)) for one in asked]
    try:
        given = reward.judge_all([prompt for prompt, _ in asked], [answer for _, answer in asked])  # type: ignore[attr-defined]
    except (Exception, SystemExit) as error:
        given = [error] * len(asked)
    if len(given) != len(asked):
        return [
            _refused(
                f"a reward must give a number for every response; asked for {len(asked)} together, among them "
                f"{_where(one)}, {_name(reward)} gave {len(given)}: return a list with one for each, in their order",
                one,
            )
            for one in asked
        ]
    return [_checked(reward, one, value) for one, value in zip(asked, given, strict=True)]


def _given(reward: Reward, prompt: Prompt, answer: Answer) -> object:
    """What a reward returned, or what it raised."""
    try:
        return reward(prompt, answer)
    except (Exception, SystemExit) as error:
        return error


def _checked(reward: Reward, asked: Asked, given: object) -> Grade | RewardError:
    where = f"for {_where(asked)} {_name(reward)}"
    if isinstance(given, Exception | SystemExit):
        raised = f"{type(given).__name__}: {given}"
        return _refused(f"a reward must give a number for every response; {where} raised {raised}", asked, given)
    told = given if isinstance(given, Grade) else Grade(value=0.0)
    value: object = told.value if told is given else given
    number = _number(value)
    if number is None or not math.isfinite(number):
        way_out = "return 0.0 for a response that cannot be judged"
        if isinstance(value, list | tuple):
            way_out = "a function that judges many responses at once needs batched = true"
        return _refused(f"a reward must be a finite number; {where} gave {_shown(value)}; {way_out}", asked)
    if abs(number) > LARGEST:
        return _refused(
            f"a reward must lie within +-{LARGEST:g}; {where} gave {number!r}; scale it, 0 to 1 is usual", asked
        )
    if not all(isinstance(text, str) for text in (told.status, told.stage, told.extracted or "")):
        return _refused(f"status, stage and extracted of a Grade must be text; {where} gave {_shown(told)}", asked)
    return replace(told, value=number)


def _refused(said: str, asked: Asked, cause: BaseException | None = None) -> RewardError:
    answer = asked[1]
    error = RewardError(f"{said}; the response was {answer.text!r}", rollout_id=answer.id)
    error.__cause__ = cause
    return error


def _where(asked: Asked) -> str:
    return f"rollout {asked[1].id} of prompt {asked[0].id}"


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
