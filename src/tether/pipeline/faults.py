"""How long one rollout may take, and how many may fail before a run stops."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tether.errors import ConfigError

LEAST_SURVIVORS = 2
"""Rollouts that a group needs to have a baseline; one where groups have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The ``[faults]`` table. A rollout that fails is counted with its reason; its group goes on with the others.

    Seconds are those of the run's clock: virtual under ``inline``, where only a cost of the recipe makes time pass (a
    call that hangs there is stopped by the watchdog).

    >>> Faults(rollout_s=0.0)
    Traceback (most recent call last):
    tether.errors.ConfigError: faults.rollout_s must be above 0 and at most 1e+09 seconds; got 0.0
    """

    rollout_s: float = 21_600.0
    """From the moment a rollout is asked for until its last token; then it has failed."""
    reward_s: float = 600.0
    """The judging of one rollout; then it has failed."""
    most_failed: int = 64
    """Rollouts that fail in a row, none in between coming to an end, after which the run stops."""

    def __post_init__(self) -> None:
        for name in ("rollout_s", "reward_s"):
            value = getattr(self, name)
            if not (0 < value <= 1e9 and math.isfinite(value)):
                raise ConfigError(f"faults.{name} must be above 0 and at most 1e+09 seconds; got {value}")
        if self.most_failed < 1:
            raise ConfigError(f"faults.most_failed must be at least 1; got {self.most_failed}")
