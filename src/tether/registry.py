"""Names for plug-ins: one class for every room.

A plug-in is a frozen dataclass whose fields are its options. The decorator gives it the name that recipes use;
the folder it lies in is searched on first use, so a new file appears by itself in recipes, ``tether rules`` and the
law suite. Code from elsewhere joins through the entry-point group ``tether.<kind>``, or needs no name at all: pass
the object.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tether.errors import ConfigError, UnknownNameError

C = TypeVar("C", bound=type)


class Registry:
    """The names of one kind of plug-in.

    >>> toys = Registry("toy", plural="toys")
    >>> @toys.register("ball")
    ... @dataclasses.dataclass(frozen=True)
    ... class Ball:
    ...     '''A ball.
    ...
    ...     >>> Ball(radius=2.0).radius
    ...     2.0
    ...     '''
    ...     radius: float = 1.0
    >>> toys.names()
    ('ball',)
    >>> toys.build("ball", radius=3.0)
    Ball(radius=3.0)
    >>> toys.build("bal")
    Traceback (most recent call last):
    tether.errors.UnknownNameError: no toy 'bal'; there is ball
    """

    def __init__(self, kind: str, *, plural: str, rooms: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.plural = plural
        self._rooms = rooms
        self._by_name: dict[str, type] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[C], C]:
        """Give a frozen dataclass its name; refuse a taken name, a mutable class, a docstring without an example."""

        def enter(cls: C) -> C:
            taken = self._by_name.get(name)
            if taken is not None and (taken.__module__, taken.__qualname__) != (cls.__module__, cls.__qualname__):
                raise ConfigError(f"{self.kind} {name!r} is already {taken.__module__}.{taken.__qualname__}")
            params = getattr(cls, "__dataclass_params__", None)
            if params is None or not params.frozen:
                raise TypeError(f"{cls.__qualname__} must be a frozen dataclass: its fields are its options")
            if ">>>" not in (cls.__doc__ or ""):
                raise TypeError(f"{cls.__qualname__} must show a worked example (a doctest) in its docstring")
            self._by_name[name] = cls
            return cls

        return enter

    def names(self) -> tuple[str, ...]:
        """Every known name, sorted."""
        self._discover()
        return tuple(sorted(self._by_name))

    def get(self, name: str) -> type:
        """The class of a name."""
        self._discover()
        if name not in self._by_name:
            known = ", ".join(self.names())
            verb = "are" if len(self._by_name) > 1 else "is"
            there = f"there {verb} {known}" if known else "there are none yet"
            raise UnknownNameError(f"no {self.kind} {name!r}; {there}")
        return self._by_name[name]

    def name_of(self, plugin: object) -> str:
        """The name of an object's class; its class name if it was passed as an object and has none."""
        self._discover()
        return next((n for n, cls in self._by_name.items() if type(plugin) is cls), type(plugin).__name__)

    def build(self, name: str, /, **options: Any) -> Any:
        """Build a plug-in from its name and options; unknown options are errors that list the known ones."""
        cls = self.get(name)
        known = [f.name for f in dataclasses.fields(cls) if f.init]
        if unknown := sorted(options.keys() - set(known)):
            raise ConfigError(
                f"{self.kind} {name!r} has no option {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(known) or 'none'}"
            )
        return cls(**options)

    def items(self) -> Iterator[tuple[str, type]]:
        """Name and class of every plug-in, sorted by name."""
        return ((name, self._by_name[name]) for name in self.names())

    def summary(self, name: str) -> str:
        """First line of a plug-in's docstring."""
        return (inspect.getdoc(self.get(name)) or "").splitlines()[0]

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True  # first, so that a plug-in's module may itself ask for names
        for room in self._rooms:
            package = importlib.import_module(room)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                importlib.import_module(f"{room}.{module.name}")
        for point in importlib.metadata.entry_points(group=f"tether.{self.kind}"):
            point.load()


RULES = Registry("rule", plural="rules", rooms=("tether.rules",))
CORRECTIONS = Registry("correction", plural="corrections", rooms=("tether.corrections",))
KERNELS = Registry("kernel", plural="kernels", rooms=("tether.core",))
SCALES = Registry("scale", plural="scales", rooms=("tether.scales",))
AGGREGATIONS = Registry("aggregation", plural="aggregations", rooms=("tether.core",))
ADVANTAGES = Registry("advantage", plural="advantages", rooms=("tether.core",))
KL_PENALTIES = Registry("kl", plural="KL penalties", rooms=("tether.core",))
PROXIMALS = Registry("proximal", plural="proximals", rooms=("tether.proximal",))
STEP_SIZES = Registry("step-size", plural="step sizes", rooms=("tether.core.step_sizes",))
REPLAYS = Registry("replay", plural="replays", rooms=("tether.replay",))
REWARDS = Registry("reward", plural="rewards", rooms=("tether.rewards",))
TASKS = Registry("task", plural="tasks", rooms=("tether.tasks",))
ENGINES = Registry("engine", plural="engines", rooms=("tether.engines", "tether.engines.served"))

ALGORITHM_KINDS: tuple[Registry, ...] = (
    RULES,
    CORRECTIONS,
    PROXIMALS,
    KERNELS,
    SCALES,
    AGGREGATIONS,
    ADVANTAGES,
    KL_PENALTIES,
    STEP_SIZES,
    REPLAYS,
)
