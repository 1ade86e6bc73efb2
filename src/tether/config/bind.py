"""Tables become objects: a class's fields are a table's keys, their types are checked, plug-ins are built by name."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from tether.errors import ConfigError, TetherError
from tether.registry import Registry

T = TypeVar("T")
Table = Mapping[str, Any]

LARGEST = 3.4e38
"""Of a setting: it meets float32 tensors sooner or later, and they hold no more."""


def bind(cls: type[T], table: Any, where: str, beside: tuple[str, ...] = ()) -> T:
    """Build a dataclass from a table; ``where`` is the table's name in messages.

    ``beside`` are keys of the same table that were read already: they belong to the list of known ones.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Box:
    ...     width: int = 1
    >>> bind(Box, {"width": 3}, "box")
    Box(width=3)
    >>> bind(Box, {"widht": 3}, "box")
    Traceback (most recent call last):
    tether.errors.ConfigError: unknown key box.widht; [box] has width
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table; got {table!r}")
    known = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    if unknown := [key for key in table if key not in known]:
        there = ", ".join([*known, *beside]) or "no keys"
        raise ConfigError(f"unknown key {where}.{unknown[0]}; [{where}] has {there}")
    hints = get_type_hints(cls)
    values = {key: _value(known[key], hints[key], value, f"{where}.{key}") for key, value in table.items()}
    missing = [
        name
        for name, f in known.items()
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}.{missing[0]} is not set; [{where}] needs {', '.join(missing)}")
    try:
        return cls(**values)
    except TetherError:
        raise
    except ValueError as error:
        raise ConfigError(f"[{where}] {error}") from error


def plugin(registry: Registry, table: Any, where: str, key: str = "name") -> Any:
    """Build a plug-in from its name, or from a table with its name under ``key`` and its options beside it."""
    table = named(table, where, key)
    cls = registry.get(str(table[key]))
    return bind(cls, {option: value for option, value in table.items() if option != key}, where, beside=(key,))


def named(table: Any, where: str, key: str = "name") -> dict[str, Any]:
    """A plug-in's table in full form: ``"ppo"`` is ``{name = "ppo"}``."""
    table = {key: table} if isinstance(table, str) else table
    if not isinstance(table, Mapping) or not isinstance(table.get(key), str):
        raise ConfigError(f'{where} must be a name or a table with {key} = "..."; got {table!r}')
    return dict(table)


def describe(value: Any) -> Any:
    """A bound object as plain tables again, defaults included: what ``config.json`` and ``--dry-run`` show."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return [describe(item) for item in value] if isinstance(value, tuple | list) else value
    table: dict[str, Any] = {}
    for f in dataclasses.fields(value):
        if not f.init:
            continue
        inner, registry = getattr(value, f.name), f.metadata.get("registry")
        table[f.name] = describe_plugin(registry, inner) if registry is not None else describe(inner)
    return table


def describe_plugin(registry: Registry, value: Any, key: str = "name") -> Any:
    """A plug-in, or a tuple of them, with its name first."""
    if isinstance(value, tuple):
        return [describe_plugin(registry, item, key) for item in value]
    return None if value is None else {key: registry.name_of(value), **describe(value)}


def _value(f: dataclasses.Field[Any], hint: Any, value: Any, where: str) -> Any:
    registry = f.metadata.get("registry")
    if registry is not None:
        return _plugins(registry, f, hint, value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return bind(hint, value, where)
    if (inner := _tables_of(hint)) is not None:
        items = value if isinstance(value, list | tuple) else [value]  # one table may stand for a list of one
        return tuple(bind(inner, item, f"{where}[{n}]") for n, item in enumerate(items))
    if value == "none" and type(None) in get_args(hint):
        return None
    if isinstance(value, bool) and hint is not bool:
        raise ConfigError(f"{where} must be {_shown(hint)}; got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} must be a finite number; got {value}")
    try:  # as JSON, where strict still means that an array may be a tuple and a whole number a float
        bound = _adapter(hint).validate_json(json.dumps(value, allow_nan=False), strict=True)
    except (ValueError, TypeError) as error:  # pydantic's ValidationError is a ValueError
        raise ConfigError(f"{where} must be {_shown(hint)}; got {value!r}") from error
    numbers = [n for n in (bound if isinstance(bound, tuple) else (bound,)) if isinstance(n, float)]
    if any(not abs(number) <= LARGEST for number in numbers):
        raise ConfigError(f"{where} must be a number that float32 can hold, at most {LARGEST:g}; got {value!r}")
    return bound


def _tables_of(hint: Any) -> type[Any] | None:
    """The class of a field that holds tables, such as ``tuple[Source, ...]``."""
    inner = get_args(hint)[0] if get_origin(hint) is tuple and get_args(hint) else None
    return inner if isinstance(inner, type) and dataclasses.is_dataclass(inner) else None


_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)  # making one costs far more than using it


def _plugins(registry: Registry, f: dataclasses.Field[Any], hint: Any, value: Any, where: str) -> Any:
    """One plug-in, several where the field is a tuple, or none where it may be left out."""
    if value is None and f.default is None:
        return None
    if get_origin(hint) is not tuple:
        if isinstance(value, Mapping) and "name" not in value and f.default not in (None, dataclasses.MISSING):
            value = {"name": registry.name_of(f.default), **value}  # options of the plug-in that is there anyway
        return plugin(registry, value, where)
    if not isinstance(value, list):
        raise ConfigError(f"{where} must be a list, such as [[{where}]] in a recipe; got {value!r}")
    return tuple(plugin(registry, item, f"{where}[{i}]") for i, item in enumerate(value))


def _shown(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    return text.replace("typing.Literal", "one of ").replace("typing.", "").replace("NoneType", "nothing")
