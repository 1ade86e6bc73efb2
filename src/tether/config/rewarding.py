"""The rewards of a run: those of the ``[reward]`` table, or the one that its task names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from tether.config.bind import describe_plugin, named, plugin
from tether.errors import ConfigError
from tether.ports import Reward
from tether.registry import REWARDS
from tether.rewards.composition import Composition, Part, When, alone
from tether.tasks.task import Task

BESIDE = ("weight", "label", "when")
"""Keys of a part that belong to its place in the sum."""


def bind_rewards(table: Any) -> Composition | None:
    """The ``[reward]`` table, bound; ``None`` where a recipe has none and its task's reward counts.

    >>> rewards = bind_rewards({"parts": [{"name": "exact"}, {"name": "number", "weight": 0.5, "label": "digits"}]})
    >>> [(part.label, part.weight) for part in rewards.parts]
    [('exact', 1.0), ('digits', 0.5)]
    """
    if table == {}:
        return None
    if not isinstance(table, Mapping):
        raise ConfigError(f"reward must be a table; got {table!r}")
    if unknown := [key for key in table if key not in ("parts", "decides")]:
        raise ConfigError(f"unknown key reward.{unknown[0]}; [reward] has parts, decides")
    parts, decides = table.get("parts", []), table.get("decides", "")
    if not isinstance(parts, list):
        raise ConfigError(f"reward.parts must be a list, such as [[reward.parts]] in a recipe; got {parts!r}")
    if not isinstance(decides, str):
        raise ConfigError(f"reward.decides must be the label of a part; got {decides!r}")
    rewards = Composition(tuple(_part(part, f"reward.parts[{n}]") for n, part in enumerate(parts)), decides)
    if not any(part.weight for part in rewards.parts):
        raise ConfigError(
            "a reward is the sum of its parts by their weights, and each of reward.parts has weight 0: every answer "
            "would get 0, and nothing be learned; give one of them another weight"
        )
    return rewards


def describe_rewards(rewards: Composition | None) -> dict[str, Any]:
    """As plain tables again."""
    if rewards is None:
        return {}
    parts = [
        {
            **describe_plugin(REWARDS, part.reward),
            "weight": part.weight,
            "label": part.label,
            "when": part.when,
        }
        for part in rewards.parts
    ]
    return {"parts": parts, "decides": rewards.decides}


def reward_of(name: str, where: str = "task.reward") -> Reward:
    """A reward by registered name, or a callable by ``package.module:function``."""
    if name == "python":
        raise ConfigError(f"{where} = 'python' does not say which function; give its place, package.module:function")
    reward: Reward = plugin(REWARDS, _placed({"name": name}), where)
    return reward


def rewards_of(rewards: Composition | None, task: Task) -> Composition:
    """What a run is trained on."""
    return rewards or alone(reward_of(task.reward), task.reward)


def criterion_of(task: Task, asked: Reward | None = None) -> Composition:
    """What accuracy is measured by, 1 being right: what is asked for, else the reward that the task names for it, or
    ``exact`` if it names none."""
    if asked is not None:
        return alone(asked, REWARDS.name_of(asked))
    name = getattr(task, "criterion", "exact")
    return alone(reward_of(name), name)


def _part(table: Any, where: str) -> Part:
    table = named(table, where)
    weight, label = table.get("weight", 1.0), table.get("label", table["name"])
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not abs(weight) <= 1e6:
        raise ConfigError(f"{where}.weight must be a number within +-1e6; got {weight!r}")
    if not isinstance(label, str) or not label or "/" in label:
        raise ConfigError(f"{where}.label must be a word without a slash; got {label!r}")
    when = table.get("when", "always")
    if when not in get_args(When):
        raise ConfigError(f"{where}.when must be one of {', '.join(get_args(When))}; got {when!r}")
    own = {key: value for key, value in table.items() if key not in BESIDE}
    return Part(label=label, reward=plugin(REWARDS, _placed(own), where), weight=float(weight), when=when)


def _placed(table: dict[str, Any]) -> dict[str, Any]:
    """A place in Python is the reward ``python`` with that path."""
    return {**table, "name": "python", "path": table["name"]} if ":" in table["name"] else table
