"""How long work in another process may take before the run stops and says what it waited for."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tether.errors import ConfigError

MOST_S = 1e9
"""Longest deadline, about thirty years."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The ``[placement.deadlines]`` table, in real seconds.

    >>> Deadlines(step_s=0.0)
    Traceback (most recent call last):
    tether.errors.ConfigError: placement.deadlines.step_s must be above 0 and at most 1e+09 seconds; got 0.0
    """

    start_s: float = 600.0
    """A process starts and loads its model."""
    generate_s: float = 3600.0
    """An engine gives its next completion while it has work, answers what it was asked at once, or finishes what is
    under way before it loads a version; one that does not is started anew."""
    reward_s: float = 3600.0
    """A reward worker gives its next reward while it has work; one that does not is started anew. A single rollout
    has failed after ``faults.reward_s``."""
    step_s: float = 1800.0
    """The learner makes one update."""
    publish_s: float = 600.0
    """A version is written to the object store, taken from there, or checked."""
    evaluate_s: float = 7200.0
    """The held-out prompts are answered."""
    checkpoint_s: float = 1800.0
    """Weights and optimizer are written, or read."""

    def __post_init__(self) -> None:
        for f in fields(self):
            if not 0 < (value := getattr(self, f.name)) <= MOST_S:
                raise ConfigError(
                    f"placement.deadlines.{f.name} must be above 0 and at most {MOST_S:g} seconds; got {value}"
                )
