"""How a version reaches the engines: published whole, loaded by each, acknowledged, checked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from tether.errors import EngineLostError, SelfCheckError
from tether.journal.merging import merge
from tether.pipeline.learner import Learner
from tether.pipeline.old_policy import Evaluator
from tether.ports import Clock, InFlight, Publication, RolloutEngine
from tether.records import Metrics

Check = Callable[[str, RolloutEngine, Publication], Awaitable[Metrics]]
"""Looks at what an engine makes of a version; raises if it is not what the learner published, else gives what it
measured."""
LOADS_KEPT = 256


class Publisher:
    """Publishes the learner's weights and makes sure that every engine holds them.

    Waits for: each engine's acknowledgement, and the checks. Unblocks: whoever frees slots after it.

    Args:
        learner: whose weights they are.
        engines: by name; all of them load each publication.
        clock: on which a publication takes its time.
        checks: asked after each load, of each engine.
        in_flight: what becomes of completions under way.
        evaluator: of old log-probs; it holds a version before an engine samples from it.
    """

    def __init__(
        self,
        learner: Learner,
        engines: Mapping[str, RolloutEngine],
        clock: Clock,
        checks: tuple[Check, ...] = (),
        in_flight: InFlight = "finish",
        evaluator: Evaluator | None = None,
    ) -> None:
        self._learner, self._engines, self._clock, self._checks = learner, engines, clock, checks
        self._in_flight, self._evaluator = in_flight, evaluator
        self.version = -1
        self.is_unchanged = False
        """Whether the weights published last are, as published, those of the version before."""
        self.loads: deque[tuple[float, int]] = deque(maxlen=LOADS_KEPT)
        """When all engines held which version, the newest last."""
        self._publication: Publication | None = None
        self._turns = {name: asyncio.Lock() for name in engines}
        self._published: Publication | None = None
        self._measured: Metrics = {}

    async def begin(self) -> Publication | None:
        """Publish version 0, as ``publish`` does. Of a model with an adapter a trial comes first: a fresh adapter
        changes nothing, so that an engine without it would pass every check for as long as training is slow."""
        if (trial := await self._learner.publish_trial()) is not None:
            await self.load(trial)
            self.loads.clear()
        return await self.publish()

    async def publish(self, live: int | None = None) -> Publication | None:
        """Publish the learner's weights and have them loaded; nothing if the engines hold them already.

        ``live``: no token that is still to be trained on has an older version.
        """
        if self._learner.updates == self.version:
            return None
        before = self._publication
        publication = await self._learner.publish(live)
        await self.load(publication)
        self.is_unchanged = before is not None and before.fingerprint == publication.fingerprint
        if self._evaluator is not None and live is not None:
            await self._evaluator.forget(live)
        self._published = publication
        await self._clock.spend("publish")
        return publication

    async def load(self, publication: Publication) -> None:
        """Have every engine take a version that was published; those that die over it are started anew, and again."""
        if self._evaluator is not None:
            for held in await self._learner.old_publications():
                await self._evaluator.load(held)
        self._publication = publication
        async with asyncio.TaskGroup() as tasks:
            for name in self._engines:
                tasks.create_task(self._load(name), name=f"load {name}")
        self.version = publication.version
        self.loads.append((self._clock.now(), publication.version))
        measured: list[Metrics] = []
        for name, engine in self._engines.items():
            measured += [await check(name, engine, publication) for check in self._checks]
        self._measured = merge(measured)

    async def revive(self, name: str) -> None:
        """Have an engine that was started anew take the version that the others hold, and check it."""
        publication = await self._load(name)
        for check in self._checks:
            self._measured = merge([self._measured, await check(name, self._engines[name], publication)])

    async def _load(self, name: str) -> Publication:
        """Have an engine take the newest publication, whichever that is by now: one that dies over it, or over the one
        before, must not come back with old weights."""
        engine = self._engines[name]
        async with self._turns[name]:
            while True:
                publication = self._publication
                assert publication is not None, "a run publishes before it generates"
                try:
                    received = await engine.load(publication, self._in_flight)
                    break
                except EngineLostError:  # the placement counts how often, and gives up
                    continue
        if received != publication.fingerprint or engine.version != publication.version:
            raise SelfCheckError(
                f"self-check 'acknowledgement' failed at version {publication.version}: {name} says that it holds "
                f"version {engine.version} with fingerprint {received[:12]}, and {publication.fingerprint[:12]} "
                "was published. What arrived is not what the trainer sent: look at the weight store and at the "
                "engine's load"
            )
        return publication

    def take_published(self) -> Publication | None:
        """What was published last; nothing if that was taken already."""
        published, self._published = self._published, None
        return published

    def take_measured(self) -> Metrics:
        """What the checks of the last load measured; nothing if that was taken already."""
        measured, self._measured = self._measured, {}
        return measured
