"""A rollout engine as the controller sees it: in a process of its own, started anew when that dies or stalls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tether.errors import EngineLostError, ResumeError, StalledError
from tether.placement.deadlines import Deadlines
from tether.placement.line import Line
from tether.placement.parts import Notices
from tether.placement.ray_process import Process, ProcessDiedError
from tether.placement.restarts import Restarts
from tether.ports import EngineCapabilities, GenerationRequest, InFlight, Publication
from tether.records import Completion


class RayEngine:
    """A ``RolloutEngine`` in another process.

    When the process dies, or passes a deadline and is ended, a new one is started, and every call to the old one raises
    ``EngineLostError``: the new engine holds no weights, and what was asked must be asked again. It holds no requests
    back: whoever asks bounds how many are under way.

    Args:
        start: starts a process that holds the engine.
        deadlines: how long each kind of call may take.
        restarts: how often a process may be started anew.
        notices: hears of each process.
    """

    def __init__(
        self, start: Callable[[], Process], deadlines: Deadlines, restarts: Restarts, notices: Notices
    ) -> None:
        self._start, self._deadlines, self._restarts, self._notices = start, deadlines, restarts, notices
        self._process = start()
        self._line = self._new_line()
        self._capabilities: EngineCapabilities | None = None
        self._version = -1
        self._busy_before_s = 0.0  # of processes that are gone
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

    @property
    def busy_s(self) -> float:
        """Real seconds that its processes have worked, as of the last result."""
        return self._busy_before_s + self._line.busy_s

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one completion, together with whatever else is under way.

        It must come, or another of this engine, within ``placement.deadlines.generate_s`` of the one before.
        """
        if self._version < 0:
            raise EngineLostError(f"{self._process.who} holds no weights yet; what was asked must be asked again")
        line = self._line
        try:
            completion: Completion = await line.ask(request)
        except EngineLostError as lost:  # a server of that process
            self._lost_server(lost)
            raise
        except ProcessDiedError as died:
            raise await self._lost(line.process, died) from died
        return completion

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order asked, apart from what is under way."""
        completions: list[Completion] = await self._call("answer", list(requests), deadline="generate_s")
        return completions

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        """Have it take a version; the fingerprint of what it received."""
        deadline = "generate_s" if in_flight == "finish" else "publish_s"  # it waits for what is under way
        try:
            received, version = await self._call("load", publication, in_flight, deadline=deadline)
        except EngineLostError as lost:
            self._lost_server(lost)
            raise
        self._version = int(version)
        return str(received)

    async def progress(self) -> Mapping[str, Completion]:
        """What was sampled so far of every completion under way; nothing if that died just now."""
        try:
            sampled: Mapping[str, Completion] = await self._call("progress", deadline="checkpoint_s")
        except EngineLostError:
            return {}
        return sampled

    def in_flight(self) -> None:
        """Nothing: what is under way is in the other process, and ``progress`` tells what can be saved of it."""
        return None

    def restore(self, flight: Mapping[str, Any]) -> None:
        """Refused: no engine in another process has told a flight."""
        raise ResumeError(
            "generations under way that were saved in one process cannot be gone on with in others; resume with "
            "placement.kind=inline"
        )

    async def _call(self, name: str, *args: Any, deadline: str) -> Any:
        async with self._replacing:  # a new process that is about to come is waited for
            process, line = self._process, self._line
        try:
            value, line.busy_s = await self._asked(process, name, *args, deadline=deadline)
        except ProcessDiedError as died:
            raise await self._lost(process, died) from died
        return value

    async def _asked(self, process: Process, name: str, *args: Any, deadline: str) -> tuple[Any, float]:
        within_s = getattr(self._deadlines, deadline)
        try:
            answered, _ = await process.call(name, *args, deadline=deadline, within_s=within_s)
        except StalledError:
            raise ProcessDiedError(
                f"{process.who} did not come back from {name} within placement.deadlines.{deadline} = {within_s:g} "
                "seconds, and is ended"
            ) from None
        value, busy_s = answered
        return value, float(busy_s)

    def _lost_server(self, lost: EngineLostError) -> None:
        """Its server holds no weights any more: a person hears of it once, and others are sent elsewhere meanwhile."""
        if self._version >= 0:
            self._version = -1
            self._notices.warn(f"{self._process.role}: {lost}")

    async def _lost(self, process: Process, died: ProcessDiedError) -> EngineLostError:
        """Start another process, unless somebody who noticed earlier has done so; what to tell who asked the old."""
        async with self._replacing:
            if self._process is process:
                self._version = -1
                self._busy_before_s, line = self.busy_s, self._line
                line.busy_s = 0.0
                await self._replace(str(died))
                self._line = self._new_line()
        return EngineLostError(f"{died}; a new one was started")

    async def _replace(self, died: str) -> None:
        while True:
            await asyncio.to_thread(self._process.end)  # it waits until the process is gone
            self._restarts.take(died)
            self._process = self._start()
            try:
                await self._process.starting(self._deadlines.start_s)
            except ProcessDiedError as again:
                died = str(again)
                continue
            self._notices.process(self._process.facts)
            return

    def _new_line(self) -> Line:
        return Line(self._process, deadline="generate_s", within_s=self._deadlines.generate_s)
