"""``--set key=value``: one dotted key a time, applied in the order given."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from tether.config.presets import preset
from tether.config.toml import loads
from tether.errors import ConfigError

PLUGIN_KEYS = {
    "algorithm.proximal",
    "algorithm.rule",
    "algorithm.rule.kernel",
    "algorithm.rule.scale",
    "algorithm.aggregation",
    "algorithm.advantage",
    "algorithm.kl",
    "algorithm.step_size",
}
"""Keys that hold a name, or a table with that name and its options."""


def parse(text: str) -> tuple[str, Any]:
    """Key and value of one ``--set``; the value is read as TOML, and as a plain string if it is not.

    >>> parse("trainer.lr=1e-4"), parse("model.path=tiny-moe"), parse("trainer.betas=[0.9, 0.98]")
    (('trainer.lr', 0.0001), ('model.path', 'tiny-moe'), ('trainer.betas', [0.9, 0.98]))
    """
    key, equals, raw = text.partition("=")
    key, raw = key.strip(), raw.strip()
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"--set takes key=value, such as trainer.lr=1e-4; got {text!r}")
    try:
        value, *more = loads(f"value = {raw}", f"--set {key}").items()
    except tomllib.TOMLDecodeError:
        return key, raw
    if more:
        raise ConfigError(f"--set takes one key=value a time; got {text!r}; give {more[0][0]} a --set of its own")
    return key, value[1]


def apply(recipe: dict[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The recipe with every setting applied, in order; the recipe itself is changed.

    Setting ``algorithm.preset`` discards everything that the recipe has under ``[algorithm]``; what follows applies on
    top, and what came before it is an error, not lost.
    Naming another plug-in discards the options of the one before.
    """
    lost: list[str] = []
    for text in settings:
        key, value = parse(text)
        if key == "algorithm.preset":
            if lost and isinstance(value, str):
                raise ConfigError(f"--set algorithm.preset would discard {', '.join(lost)} before it; give it first")
            recipe["algorithm"] = {"preset": value}
            continue
        lost += [key] if key.startswith("algorithm.") else []
        if key.startswith("algorithm."):
            table = recipe.get("algorithm", {})
            recipe["algorithm"] = {**expand(table), **({"preset": table["preset"]} if "preset" in table else {})}
        _put(recipe, key, value)
    return recipe


def expand(algorithm: Any) -> dict[str, Any]:
    """An ``[algorithm]`` table with its preset written out underneath its own keys."""
    if not isinstance(algorithm, dict):
        raise ConfigError(f"algorithm must be a table; got {algorithm!r}")
    own = {key: value for key, value in algorithm.items() if key != "preset"}
    if algorithm.get("preset") is None:
        return own
    if not isinstance(algorithm["preset"], str):
        raise ConfigError(f'algorithm.preset must be a name, such as "sat-gspo"; got {algorithm["preset"]!r}')
    return _merged(preset(algorithm["preset"]), own)


def _merged(before: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A table with another's keys on top, tables inside likewise, unless they name another plug-in."""
    table = dict(before)
    for key, value in own.items():
        there = table.get(key)
        if isinstance(value, dict) and isinstance(there, dict) and value.get("name", there["name"]) == there["name"]:
            table[key] = _merged(there, value)
        else:
            table[key] = value
    return table


def _put(recipe: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    table = recipe
    for depth, name in enumerate(path):
        inner = table.get(name)
        if isinstance(inner, list) and depth + 1 < len(path) and path[depth + 1].isdigit():
            _put_into(inner, [*path[depth + 1 :], last], value, key)
            return
        if isinstance(inner, str) and ".".join(path[: depth + 1]) in PLUGIN_KEYS:
            inner = {"name": inner}
        if inner is None:
            inner = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{key} cannot be set: {'.'.join(path[: depth + 1])} is {inner!r}, not a table")
        table[name] = inner
        table = inner
    is_name = last == "name" and ".".join(path) in PLUGIN_KEYS
    is_kind = last == "kind" and path == ["placement"] and "kind" in table
    if (is_name or is_kind) and table.get(last) != value:
        table.clear()
    table[last] = value


def _put_into(entries: list[Any], path: list[str], value: Any, key: str) -> None:
    """One key of one entry of a list of plug-ins, as in ``algorithm.corrections.0.cap``."""
    number, name = int(path[0]), path[-1]
    if len(path) != 2 or number >= len(entries):
        raise ConfigError(f"{key} cannot be set: there are {len(entries)} entries, each with keys of its own, from 0")
    entry = entries[number]
    entries[number] = {**({"name": entry} if isinstance(entry, str) else entry), name: value}
