"""The version that an engine in this process holds, and how it comes to hold another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from tether.engines.busy import Busy
from tether.engines.sequence import check_follows, is_same
from tether.engines.stream import Stream
from tether.errors import ModelError
from tether.ports import InFlight, Publication, WeightStore

Put = Callable[[Publication, Mapping[str, Tensor]], None]
"""Checks that tensors fit and makes them the engine's weights; raises before it changes anything, or says that the
engine is lost."""


class Holding:
    """Takes versions from a store, one after the other, each whole or not at all.

    Args:
        store: where versions come from.
        put: makes tensors the engine's weights.
        busy: counts the seconds.
    """

    def __init__(self, store: WeightStore, put: Put, busy: Busy) -> None:
        self._store, self._put, self._busy = store, put, busy
        self.publication: Publication | None = None
        """Nothing before the first load."""

    @property
    def version(self) -> int:
        """Of the weights; -1 before the first load."""
        return -1 if self.publication is None else self.publication.version

    async def load(self, publication: Publication, in_flight: InFlight, stream: Stream) -> str:
        """Take a version while a stream goes on; the fingerprint of what was received.

        Nothing else runs while the tensors are put in place, so no token sees half of them. What is due of the block
        before comes to its callers as it was sampled. The publication that is held may come again, and what is under
        way goes on.
        """
        check_follows(self.publication, publication)
        if self.publication is None or is_same(self.publication, publication):
            return self._take(publication)
        if in_flight == "finish":
            with stream.held():
                await stream.drained()
                return self._take(publication)
        arrived = self._take(publication)
        if in_flight == "recompute":
            stream.recompute()
        elif in_flight == "restart":
            stream.interrupt()
        return arrived

    def _take(self, publication: Publication) -> str:
        check_follows(self.publication, publication)
        with self._busy:
            tensors, arrived = received(self._store, publication)
            self._put(publication, tensors)
        self.publication = publication
        return arrived


def received(store: WeightStore, publication: Publication) -> tuple[Mapping[str, Tensor], str]:
    """The tensors of a publication and their fingerprint; an error if they are not those that were announced."""
    from tether.models.fingerprint import fingerprint

    tensors = store.fetch(publication)
    arrived = fingerprint(tensors)
    if arrived != publication.fingerprint:
        raise ModelError(
            f"received weights must be those of the publication; version {publication.version} was announced as "
            f"{publication.fingerprint} and arrived as {arrived}: the engine keeps what it holds"
        )
    return tensors, arrived
