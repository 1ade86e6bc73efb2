"""When weights are published, how many groups may be under way, and the bound on staleness that follows.

``docs/staleness.md`` has the proof; the symbols here are those of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tether.errors import ConfigError
from tether.ports import InFlight

Regime = Literal["sync", "batch-async", "fully-async"]
MOST = 10**6
"""Largest lag, and most groups or rollouts at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The ``[pipeline]`` table: who may run ahead of whom, and by how much.

    ``sync``: generate a batch, train on it, publish, again; a batch is first used at staleness 0. ``batch-async`` with
    lag n: weights are published every n updates and the next block of n updates' data is generated meanwhile, so a
    token is used n .. 2n-1 updates after the weights that made it (0 .. n-1 in the first block). ``fully-async``:
    rollouts stream, weights change while they are sampled, and only the bound says how far the engines may run ahead.

    >>> Schedule(regime="batch-async", lag=8, prompts_per_step=8, group_size=8).bound
    15
    >>> Schedule(regime="sync", lag=1, prompts_per_step=8, group_size=8).slots
    8
    >>> Schedule(regime="fully-async", lag=1, max_staleness=3, window=4, prompts_per_step=8, group_size=8).slots
    28
    """

    regime: Regime = "batch-async"
    """``sync``, ``batch-async`` or ``fully-async``."""
    lag: int = 8
    """Optimizer updates per weight publication; in ``sync`` those of one batch."""
    prompts_per_step: int = 8
    """Groups that one batch takes."""
    group_size: int = 8
    """Rollouts of each prompt."""
    updates_per_batch: int = 1
    """Optimizer updates made from one batch; ``lag`` is a multiple of it."""
    max_staleness: int | None = None
    """Most optimizer updates between a token's version and its use; default: ``2 lag - 1``, in ``sync`` the least."""
    in_flight: InFlight = "keep"
    """What a publication does to rollouts under way, in ``fully-async``: they ``finish`` on the old weights before it,
    go on under the new ones and ``keep`` their key-value cache or ``recompute`` it, or ``restart`` from their prompts.
    The other regimes publish when nothing is under way."""
    window: int = 0
    """By how many younger groups a group may be overtaken, so that a slow one does not hold up the rest; each costs a
    slot."""

    def __post_init__(self) -> None:
        for name in ("prompts_per_step", "group_size", "lag", "updates_per_batch"):
            if (value := getattr(self, name)) < 1 and not (name == "lag" and self.regime != "fully-async"):
                raise ConfigError(f"pipeline.{name} must be at least 1; got {value}")
            if value > MOST:
                raise ConfigError(f"pipeline.{name} must be at most {MOST}; got {value}")
        self._check_lag()
        if self.max_staleness is not None and self.max_staleness < self.least_staleness:
            raise ConfigError(
                f"pipeline.max_staleness must be at least {self.least_staleness} in regime {self.regime!r} with lag "
                f"{self.lag}; got {self.max_staleness}; {self._way_out(self.max_staleness)}, or raise max_staleness to "
                f"{self.least_staleness}, or leave it out"
            )
        self._check_window()

    def _check_lag(self) -> None:
        each = self.updates_per_batch
        if self.regime == "sync" and self.lag != each:
            raise ConfigError(
                f"pipeline.lag must be {each} in regime 'sync' (every batch publishes); got {self.lag}; set "
                f"pipeline.lag={each}, or pipeline.regime=batch-async for a lag"
            )
        if self.lag < 1:
            raise ConfigError(
                f"pipeline.lag must be at least 1 in regime {self.regime!r}; got {self.lag}; use pipeline.regime=sync "
                "with pipeline.lag=1 for staleness 0"
            )
        if self.lag % each:
            raise ConfigError(
                f"pipeline.lag must be a multiple of pipeline.updates_per_batch = {each}, for weights are published "
                f"between batches; got {self.lag}: set {max(each, self.lag // each * each)}"
            )

    def _check_window(self) -> None:
        if self.window < 0:
            raise ConfigError(f"pipeline.window must be at least 0 groups; got {self.window}")
        if self.window and self.regime != "fully-async":
            raise ConfigError(
                f"pipeline.window belongs to regime 'fully-async', and {self.regime!r} waits for all groups of a block "
                f"anyway; got {self.window}: set 0"
            )
        if self.window and self.slots <= self.block:
            room = self.slots + self.window - self.block - 1
            lower = f"lower the window to at most {room}, or " if room > 0 else ""
            raise ConfigError(
                f"pipeline.window = {self.window} takes as many of the {self.slots + self.window} slots that "
                f"max_staleness = {self.bound} allows, and the {self.block} groups between two publications need one "
                f"each, the one that is overtaken another: {lower}raise max_staleness to {self._least_with_window()}"
            )

    def _least_with_window(self) -> int:
        needed = -(-(self.block + 1 + self.window) // self.prompts_per_step)
        return self.updates_per_batch * needed - 1

    def _way_out(self, asked: int) -> str:
        if self.regime == "batch-async":
            lag = (asked + 1) // 2 // self.updates_per_batch * self.updates_per_batch
            return f"lower pipeline.lag to {lag}" if lag else "use pipeline.regime=sync with pipeline.lag=1"
        lag = (asked + 1) // self.updates_per_batch * self.updates_per_batch
        return f"lower pipeline.lag to {lag}" if lag else "raise it"

    @property
    def least_staleness(self) -> int:
        """Below this bound the run would stand still: ``2 lag - 1`` in ``batch-async``, else ``lag - 1``."""
        return 2 * self.lag - 1 if self.regime == "batch-async" else self.lag - 1

    @property
    def bound(self) -> int:
        """Largest staleness the schedule can produce: ``updates_per_batch * ceil((slots + window) / prompts_per_step) -
        1``."""
        if self.regime != "fully-async":
            return self.least_staleness
        asked = 2 * self.lag - 1 if self.max_staleness is None else self.max_staleness
        return (asked + 1) // self.updates_per_batch * self.updates_per_batch - 1

    @property
    def slots(self) -> int:
        """Groups that may be under way at once, admitted and not yet followed by a publication."""
        return self.prompts_per_step * ((self.bound + 1) // self.updates_per_batch) - self.window

    @property
    def block(self) -> int:
        """Groups that are used between two publications."""
        return self.prompts_per_step * (self.lag // self.updates_per_batch)

    @property
    def allowed(self) -> int:
        """The staleness above which a run stops: the bound, or a larger ``max_staleness`` that changes no slot."""
        return self.bound if self.max_staleness is None or self.regime == "fully-async" else self.max_staleness

    @property
    def settles(self) -> bool:
        """Whether a publication waits until nothing is in generation."""
        return self.regime != "fully-async"

    def publishes_after(self, batch: int) -> bool:
        """True if the weights are published once ``batch`` batches are done."""
        return batch % (self.lag // self.updates_per_batch) == 0
