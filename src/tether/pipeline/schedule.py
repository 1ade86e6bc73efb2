"""When weights are published, how many groups may be under way, and the bound on staleness that follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tether.errors import ConfigError

Regime = Literal["sync", "batch-async"]
MOST = 10**6
"""Largest lag, and most groups or rollouts at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The ``[pipeline]`` table: who may run ahead of whom, and by how much.

    ``sync``: generate a step, train on it, publish, again; staleness is 0. ``batch-async`` with lag n: weights are
    published every n steps and the next block of n steps is generated meanwhile, so a token is used n .. 2n-1 updates
    after the weights that made it (0 .. n-1 in the first block).

    >>> Schedule(regime="batch-async", lag=8, prompts_per_step=8, group_size=8).bound
    15
    >>> Schedule(regime="sync", lag=1, prompts_per_step=8, group_size=8).slots
    8
    """

    regime: Regime = "batch-async"
    """``sync`` or ``batch-async``."""
    lag: int = 8
    """Trainer steps per weight publication; 1 in ``sync``."""
    prompts_per_step: int = 8
    """Groups that one step takes."""
    group_size: int = 8
    """Rollouts of each prompt."""
    updates_per_batch: int = 1
    """Optimizer updates made from one batch; 1 is what this version does."""
    max_staleness: int | None = None
    """Most optimizer updates between a token's version and its use; default: the derived bound."""

    def __post_init__(self) -> None:
        for name in ("prompts_per_step", "group_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"pipeline.{name} must be at least 1; got {getattr(self, name)}")
        for name in ("prompts_per_step", "group_size", "lag"):
            if getattr(self, name) > MOST:
                raise ConfigError(f"pipeline.{name} must be at most {MOST}; got {getattr(self, name)}")
        if self.regime == "sync" and self.lag != 1:
            raise ConfigError(
                f"pipeline.lag must be 1 in regime 'sync' (every step publishes); got {self.lag}; set pipeline.lag=1, "
                "or pipeline.regime=batch-async for a lag"
            )
        if self.lag < 1:
            raise ConfigError(
                f"pipeline.lag must be at least 1 in regime {self.regime!r}; got {self.lag}; use pipeline.regime=sync "
                "with pipeline.lag=1 for staleness 0"
            )
        if self.updates_per_batch != 1:
            raise ConfigError(
                "pipeline.updates_per_batch must be 1, the only value this version can run; "
                f"got {self.updates_per_batch}"
            )
        if self.max_staleness is not None and self.max_staleness < self.bound:
            lag = (self.max_staleness + 1) // 2
            way_out = f"lower pipeline.lag to {lag}" if lag else "use pipeline.regime=sync with pipeline.lag=1"
            raise ConfigError(
                f"pipeline.max_staleness must be at least {self.bound} in regime {self.regime!r} with lag {self.lag}; "
                f"got {self.max_staleness}; {way_out}, or leave it out"
            )

    @property
    def bound(self) -> int:
        """Largest staleness the schedule can produce: ``2 lag - 1``, or 0 in ``sync``."""
        return 0 if self.regime == "sync" else 2 * self.lag - 1

    @property
    def slots(self) -> int:
        """Groups under way at once: the block in training and the one ahead, or one step's worth in ``sync``."""
        return self.prompts_per_step * (1 if self.regime == "sync" else 2 * self.lag)

    @property
    def allowed(self) -> int:
        """The staleness above which a run stops: ``max_staleness`` if set, else the bound."""
        return self.bound if self.max_staleness is None else self.max_staleness

    def publishes_after(self, step: int) -> bool:
        """True if the weights are published once ``step`` steps are done."""
        return step % self.lag == 0
