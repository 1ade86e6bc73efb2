"""Where the time of trainer, feed and engines went, on the run's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tether.records import Event

TRAINER_WAITS: Final = {
    "data": "waited for data",
    "publication": "waited for publications",
    "settle": "waited for generation to settle",
}
ENGINE_PREFIX: Final = "wait/engine_idle/"


@dataclass(frozen=True, slots=True)
class Spent:
    """The time of one part of a run, whole: what it did and what it waited for, in seconds.

    >>> Spent("trainer", {"working": 6.0, "waited for data": 2.0}).share("waited for data")
    0.25
    """

    who: str
    parts: Mapping[str, float]

    def share(self, part: str) -> float:
        """A part of the whole."""
        return self.parts[part] / sum(self.parts.values())


def where_time_went(steps: Iterable[Event]) -> tuple[Spent, ...]:
    """Trainer, feed and engines up to the last step; empty where a run did not measure what they waited for.

    The trainer's ``working`` is everything but waiting: steps, evaluations, checkpoints.
    """
    waits: dict[str, float] = {}
    whole = 0.0
    for event in steps:
        for name, metric in event.metrics.items():
            if name == "time/virtual_s" and isinstance(metric.value, float):
                whole = metric.value
            elif name.startswith("wait/") and isinstance(metric.value, float):
                waits[name] = waits.get(name, 0.0) + metric.value
    if not waits or whole <= 0:
        return ()
    trainer = {words: waits.get(f"wait/{what}_s", 0.0) for what, words in TRAINER_WAITS.items()}
    engines = sorted(name for name in waits if name.startswith(ENGINE_PREFIX))
    return (
        _spent("trainer", "working", trainer, whole),
        _spent("feed", "free to ask", {"held back by the bound": waits.get("wait/slot_s", 0.0)}, whole),
        *(
            _spent(name.removeprefix(ENGINE_PREFIX).removesuffix("_s"), "sampling", {"idle": waits[name]}, whole)
            for name in engines
        ),
    )


def _spent(who: str, working: str, waited: Mapping[str, float], whole: float) -> Spent:
    """What is not waited is worked; a wait may have begun before the first step was told."""
    return Spent(who, {working: max(0.0, whole - sum(waited.values())), **waited})
