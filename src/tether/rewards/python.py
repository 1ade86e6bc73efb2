"""A reward of your own, by the place where Python finds it."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tether.errors import ConfigError
from tether.records import Answer, Prompt
from tether.registry import REWARDS
from tether.rewards.awaiting import awaited


@REWARDS.register("python")
@dataclass(frozen=True)
class Python:
    """Calls ``function(prompt, response)`` of a module; recipes write ``reward = "package.module:function"``.

    ``prompt`` is a ``tether.records.Prompt``, ``response`` the text without its end-of-sequence token, the result a
    finite number, or a ``tether.records.Grade`` that holds one. A second parameter annotated as ``Answer``, or called
    ``answer`` and not annotated, is given the ``tether.records.Answer`` instead: the text with its number of tokens
    and whether it was cut. The function is imported when the reward is made, so a wrong path fails before the run.

    A coroutine function is awaited in an event loop of its own, many at the same time. With ``batched`` the function is
    called once for all answers that are there, ``function(prompts, responses)`` (or ``answers``), two lists of one
    length, and gives a list of that length in the same order. Which answers come together depends on time alone, so
    what it gives one must not depend on the others.

    >>> Python("operator:eq")(Prompt(id="p", text="2*3=", token_ids=(4,), reference="6"), Answer("6"))
    False
    >>> Python("judges.length")
    Traceback (most recent call last):
    tether.errors.ConfigError: a reward's path is 'package.module:function'; got 'judges.length'
    """

    path: str
    """Where the function is: ``package.module:function``."""
    batched: bool = False
    """Whether it judges lists."""
    at_once: int = 32
    """Of a coroutine function: how many answers are judged at the same time."""
    limit_s: float = 300.0
    """Of a coroutine function: real seconds that one call may take; then its rollout has failed."""

    def __post_init__(self) -> None:
        _find(self.path)
        if self.at_once < 1:
            raise ConfigError(f"at_once of reward {self.path} must be at least 1; got {self.at_once}")
        if not 0 < self.limit_s <= 1e9:
            raise ConfigError(f"limit_s of reward {self.path} must be above 0 and at most 1e+09; got {self.limit_s}")

    @property
    def gathers(self) -> bool:
        """Whether it would rather be asked about many answers at once."""
        return self.batched or _find(self.path).is_async

    def __call__(self, prompt: Prompt, answer: Answer) -> Any:
        """Whatever the function gives; ``rewards.scoring`` checks it."""
        (given,) = self.judge_all([prompt], [answer])
        if isinstance(given, Exception | SystemExit):
            raise given
        return given

    def judge_all(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> list[Any]:
        """Whatever the function gives for each; an exception in the place of what one coroutine raised."""
        function = _find(self.path)
        seconds = [answer if function.wants_answer else answer.text for answer in answers]
        if self.batched:
            return _listed(self._came_of([functools.partial(function.call, list(prompts), seconds)])[0])
        return self._came_of(
            [functools.partial(function.call, prompt, second) for prompt, second in zip(prompts, seconds, strict=True)]
        )

    def _came_of(self, calls: list[Callable[[], Any]]) -> list[Any]:
        if _find(self.path).is_async:
            return awaited(calls, at_once=self.at_once, limit_s=self.limit_s)
        return [call() for call in calls]


@dataclass(frozen=True, slots=True)
class _Function:
    call: Callable[..., Any]
    is_async: bool
    wants_answer: bool


@functools.cache  # looked up once a process; a path that fails is looked up again
def _find(path: str) -> _Function:
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"a reward's path is 'package.module:function'; got {path!r}")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises while it is imported
        raise ConfigError(
            f"reward {path!r}: module {module_name!r} cannot be imported: {type(error).__name__}: {error}; "
            "it must be installed, or its folder must be in PYTHONPATH"
        ) from error
    function = getattr(module, name, None)
    if function is None:
        there = ", ".join(sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))[:8])
        raise ConfigError(f"reward {path!r}: module {module_name!r} has no {name!r}; it has {there or 'no functions'}")
    if not callable(function):
        raise ConfigError(f"reward {path!r} must be callable as (prompt, response); it is {type(function).__name__}")
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    return _Function(function, is_async, _wants_answer(function))


def _wants_answer(function: Callable[..., Any]) -> bool:
    """Whether the second parameter asks for more than the text."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some of C have none
        return False
    if len(parameters) < 2:
        return False
    second = parameters[1]
    if second.annotation is inspect.Parameter.empty:
        return second.name in ("answer", "answers")
    return re.search(r"\bAnswer\b", inspect.formatannotation(second.annotation)) is not None


def _listed(given: Any) -> list[Any]:
    if isinstance(given, Exception | SystemExit):
        raise given
    if isinstance(given, str | bytes | Mapping) or not hasattr(given, "__iter__"):
        raise TypeError(f"a batched function gives a list with a number for each answer; it gave {given!r:.80}")
    return list(given)
