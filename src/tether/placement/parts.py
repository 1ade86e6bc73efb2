"""What a placement is given, the makers of a run's parts, and what it gives back: the parts, wherever they live."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tether.models.loading import Vocabulary
from tether.pipeline.interrupts import StopRequest
from tether.pipeline.learner import Learner, LocalLearner
from tether.pipeline.old_policy import Evaluator
from tether.pipeline.rollouts import Scorer
from tether.pipeline.stopwatch import Stopwatch
from tether.ports import Clock, RolloutEngine, WeightStore
from tether.rewards.composition import Composition

T = TypeVar("T")
MOST_ENGINES = 4096
Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorMaker:
    """How an evaluator is made."""

    make: Callable[[WeightStore, str], Evaluator]
    """From the store that the learner publishes to in its own dtype, and a device."""
    dtype: str
    """In which weights are published to it."""
    versions: int
    """That the store must keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """How the parts of a run are made. Each is called where its part lives, and travels there by pickle."""

    learner: Callable[[WeightStore, str, WeightStore | None], LocalLearner]
    """From the store it publishes to, its device, and the store that it publishes to in its own dtype, if there is an
    evaluator."""
    engine: Callable[[WeightStore, Clock, str], RolloutEngine]
    """From the store it loads from, the clock that its work spends time on, and its device."""
    rewards: Callable[[], Composition]
    dtype: str
    """In which weights are published."""
    device: str
    """What the recipe asks for, found to be there."""
    evaluator: EvaluatorMaker | None = None
    """Of old log-probs, if the recipe has one."""


class Notices:
    """What a placement has to tell of its processes, kept until somebody listens.

    >>> notices = Notices()
    >>> notices.process({"role": "engine-0"})
    >>> notices.listen(print, print)
    {'role': 'engine-0'}
    >>> notices.warn("engine-0 died")
    engine-0 died
    """

    def __init__(self) -> None:
        self._kept: list[tuple[str, Any]] = []
        self._listeners: dict[str, Callable[[Any], object]] = {}

    def process(self, facts: Facts) -> None:
        """A process takes part in the run."""
        self._tell("process", facts)

    def warn(self, text: str) -> None:
        """Something that a person should hear of."""
        self._tell("warn", text)

    def listen(self, process: Callable[[Facts], object], warn: Callable[[str], object]) -> None:
        """Tell what was kept, and from now on whatever comes."""
        self._listeners = {"process": process, "warn": warn}
        kept, self._kept = self._kept, []
        for kind, what in kept:
            self._tell(kind, what)

    def _tell(self, kind: str, what: Any) -> None:
        if self._listeners:
            self._listeners[kind](what)
        else:
            self._kept.append((kind, what))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a run, where they live."""

    learner: Learner
    engines: Mapping[str, RolloutEngine]
    """By name."""
    score: Scorer
    """Asks the rewards, wherever they are computed."""
    clock: Clock
    vocabulary: Vocabulary
    """Of the model that is trained."""
    device: str
    """Where steps are packed."""
    evaluator: Evaluator | None = None
    """Of old log-probs, where the recipe has one."""
    watch: Stopwatch = field(default_factory=Stopwatch)
    """Told of the seconds of work, wherever it is done."""
    notices: Notices = field(default_factory=Notices)


class Placement(Protocol):
    """The ``[placement]`` table, bound."""

    def check(self, device: str) -> None:
        """Refuse what can be refused before anything is made."""
        ...

    def open(self, makers: Makers) -> AbstractContextManager[Parts]:
        """Make the parts; they are gone when the block ends."""
        ...

    def run(self, main: Coroutine[Any, Any, T], stop: StopRequest | None = None, *, start_s: float = 0.0) -> T:
        """Run a coroutine to its end, its clock beginning at ``start_s``."""
        ...
