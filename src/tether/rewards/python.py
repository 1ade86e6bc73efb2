"""A reward of your own, by the place where Python finds it."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tether.errors import ConfigError
from tether.records import Answer, Prompt
from tether.registry import REWARDS


@REWARDS.register("python")
@dataclass(frozen=True)
class Python:
    """Calls ``function(prompt, response)`` of a module; recipes write ``reward = "package.module:function"``.

    ``prompt`` is a ``tether.records.Prompt``, ``response`` the text without its end-of-sequence token, the result a
    finite number. The function is imported when the reward is made, so a wrong path fails before the run.

    >>> Python("operator:eq")(Prompt(id="p", text="2*3=", token_ids=(4,), reference="6"), Answer("6"))
    False
    >>> Python("judges.length")
    Traceback (most recent call last):
    tether.errors.ConfigError: a reward's path is 'package.module:function'; got 'judges.length'
    """

    path: str
    """Where the function is: ``package.module:function``."""

    def __post_init__(self) -> None:
        _find(self.path)

    def __call__(self, prompt: Prompt, answer: Answer) -> Any:
        """Whatever the function gives; ``rewards.scoring`` checks it."""
        return _find(self.path)(prompt, answer.text)


@functools.cache  # looked up once a process; a path that fails is looked up again
def _find(path: str) -> Callable[..., Any]:
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
    found: Callable[..., Any] = function
    return found
