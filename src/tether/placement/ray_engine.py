"""The rollout engine as the controller sees it: in a process of its own, started anew when that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tether.errors import EngineLostError, ProcessLostError
from tether.pipeline.stopwatch import Stopwatch
from tether.placement.deadlines import Deadlines
from tether.placement.parts import Notices
from tether.placement.ray_process import Process, ProcessDiedError
from tether.ports import EngineCapabilities, GenerationRequest, Publication
from tether.records import Completion


class RayEngine:
    """A ``RolloutEngine`` in another process.

    When the process dies, a new one is started and the call that noticed raises ``EngineLostError``: the new engine
    holds no weights, and what was asked must be asked again. After ``max_restarts`` of them the run stops.
    """

    def __init__(
        self, start: Callable[[], Process], deadlines: Deadlines, max_restarts: int, watch: Stopwatch, notices: Notices
    ) -> None:
        self._start, self._deadlines, self._max_restarts = start, deadlines, max_restarts
        self._watch, self._notices = watch, notices
        self._process = start()
        self._capabilities: EngineCapabilities | None = None
        self._version = -1
        self._num_restarts = 0
        self._replacing = asyncio.Lock()

    def started(self) -> None:
        """Wait for the first process; for before the loop runs."""
        self._capabilities = self._process.started(self._deadlines.start_s)
        self._notices.process(self._process.facts)

    def end(self) -> None:
        """End the process."""
        self._process.end()

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it can report."""
        assert self._capabilities is not None, "started() comes first"
        return self._capabilities

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 before the first load, and in a new process."""
        return self._version

    async def generate(
        self, requests: Sequence[GenerationRequest], flight: Mapping[str, Any] | None = None
    ) -> list[Completion]:
        """Sample one completion a request, from the start."""
        completions: list[Completion]
        completions, seconds = await self._call("generate", list(requests))
        self._watch.add("generate", seconds)
        return completions

    def in_flight(self) -> None:
        """Nothing: what is under way is in the other process, and is asked again on resume."""
        return None

    async def load(self, publication: Publication) -> str:
        """Have it take a version from the object store; the fingerprint of what it received."""
        (received, version), seconds = await self._call("load", publication, deadline="publish")
        self._version = int(version)
        self._watch.add("publish", seconds)
        return str(received)

    async def _call(self, name: str, *args: Any, deadline: str = "") -> tuple[Any, float]:
        process, key = self._process, f"{deadline or name}_s"
        try:
            return await process.call(name, *args, deadline=key, within_s=getattr(self._deadlines, key))
        except ProcessDiedError as died:
            await self._replace(process, died)
            raise EngineLostError(f"{died}; a new one was started") from died

    async def _replace(self, process: Process, died: ProcessDiedError) -> None:
        """Start another process, unless somebody who noticed earlier has done so."""
        async with self._replacing:
            while self._process is process:
                self._process.end()
                self._version = -1
                if self._num_restarts >= self._max_restarts:
                    raise ProcessLostError(
                        f"{died}; it was started anew {self._num_restarts} times already, the most that "
                        "placement.max_restarts allows: find out why, then go on with tether train --resume"
                    ) from died
                self._num_restarts += 1
                self._notices.warn(f"{died}; it is started anew ({self._num_restarts} of {self._max_restarts})")
                successor = self._start()
                try:
                    await successor.starting(self._deadlines.start_s)
                except ProcessDiedError as again:
                    died, self._process, process = again, successor, successor
                    continue
                self._process = successor
                self._notices.process(successor.facts)
