"""How a version reaches the engine: published whole, loaded, acknowledged, checked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tether.errors import EngineLostError, SelfCheckError
from tether.pipeline.learner import Learner
from tether.ports import Clock, Publication, RolloutEngine
from tether.records import Metrics

Check = Callable[[Publication], Awaitable[Metrics]]
"""Looks at what the engine makes of a version; raises if it is not what the learner published, else gives what it
measured."""


class Publisher:
    """Publishes the learner's weights and makes sure that the engine holds them.

    Waits for: the engine's acknowledgement and the checks. Unblocks: whoever frees slots after it.
    """

    def __init__(self, learner: Learner, engine: RolloutEngine, clock: Clock, checks: tuple[Check, ...] = ()) -> None:
        self._learner, self._engine, self._clock, self._checks = learner, engine, clock, checks
        self.version = -1
        self._publication: Publication | None = None
        self._measured: Metrics = {}

    async def publish(self) -> None:
        """Publish and load the learner's weights; does nothing if the engine holds them already."""
        if self._learner.updates == self.version:
            return
        await self.load(await self._learner.publish())
        await self._clock.spend("publish")

    async def load(self, publication: Publication) -> None:
        """Have the engine take a version that was published; again, if it dies over it and is started anew."""
        self._publication = publication
        while True:
            try:
                return await self._load(publication)
            except EngineLostError:  # the placement counts how often, and gives up
                continue

    async def load_again(self) -> None:
        """Have an engine that was started anew take the version that the one before it held."""
        assert self._publication is not None, "a run publishes before it generates"
        await self.load(self._publication)

    async def _load(self, publication: Publication) -> None:
        received = await self._engine.load(publication)
        if received != publication.fingerprint or self._engine.version != publication.version:
            raise SelfCheckError(
                f"self-check 'acknowledgement' failed at version {publication.version}: the engine says that it holds "
                f"version {self._engine.version} with fingerprint {received[:12]}, and {publication.fingerprint[:12]} "
                "was published. What arrived is not what the trainer sent: look at the weight store and at the "
                "engine's load"
            )
        self.version = publication.version
        self._measured = {}
        for check in self._checks:
            self._measured |= await check(publication)

    def take_measured(self) -> Metrics:
        """What the checks of the last load measured; nothing if that was taken already."""
        measured, self._measured = self._measured, {}
        return measured
