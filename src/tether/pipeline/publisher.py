"""How a version reaches the engine: published whole, loaded, acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tether.errors import TetherError
from tether.ports import Clock, RolloutEngine, WeightStore

if TYPE_CHECKING:
    from torch import Tensor


class Publisher:
    """Publishes the trainer's weights and makes sure that the engine holds them.

    Consumes: a version number. Waits for: the engine's acknowledgement. Unblocks: whoever frees slots after it.
    """

    def __init__(
        self,
        store: WeightStore,
        engine: RolloutEngine,
        clock: Clock,
        weights: Callable[[], Mapping[str, Tensor]],
    ) -> None:
        self._store, self._engine, self._clock, self._weights = store, engine, clock, weights
        self.version = -1

    async def publish(self, version: int) -> None:
        """Publish and load a version; does nothing if the engine holds it already."""
        if version == self.version:
            return
        publication = self._store.publish(version, self._weights())
        received = await self._engine.load(publication)
        await self._clock.spend("publish")
        if received != publication.fingerprint or self._engine.version != version:
            raise TetherError(
                f"the engine acknowledged version {self._engine.version} with fingerprint {received[:12]}, but version "
                f"{version} was published with {publication.fingerprint[:12]}: it does not hold what the trainer sent"
            )
        self.version = version
