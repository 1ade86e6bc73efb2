"""An evaluator of old log-probs as the controller sees it: in a process of its own, started anew when that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tether.errors import StalledError
from tether.placement.deadlines import Deadlines
from tether.placement.line import Line
from tether.placement.parts import Notices
from tether.placement.ray_process import Process, ProcessDiedError
from tether.placement.restarts import Restarts
from tether.ports import Publication
from tether.records import Floats, Rollout


class RayEvaluator:
    """An ``Evaluator`` in another process.

    When that dies, a new one loads the versions that are still needed, and what was asked is asked again: nobody else
    notices.

    Args:
        start: starts a process that holds the evaluator.
        deadlines: ``publish_s`` is how long a version may take, and ``step_s`` the next score.
        restarts: how often a process may be started anew.
        notices: hears of each process.
    """

    def __init__(
        self, start: Callable[[], Process], deadlines: Deadlines, restarts: Restarts, notices: Notices
    ) -> None:
        self._start, self._deadlines, self._restarts, self._notices = start, deadlines, restarts, notices
        self._process = start()
        self._line = self._new_line()
        self._needed: dict[int, Publication] = {}
        self._replacing = asyncio.Lock()

    def started(self) -> None:
        """Wait for the first process; for before the loop runs."""
        self._process.started(self._deadlines.start_s)
        self._notices.process(self._process.facts)

    def end(self) -> None:
        """End the process."""
        self._process.end()

    async def load(self, publication: Publication) -> None:
        """Hold a version too."""
        self._needed[publication.version] = publication
        await self._call("load", publication)

    async def forget(self, older_than: int) -> None:
        """Versions below are needed no longer."""
        self._needed = {version: p for version, p in self._needed.items() if version >= older_than}
        await self._call("forget", older_than)

    async def score(self, rollout: Rollout) -> Floats:
        """``[L]``, each token at its own version."""
        while True:
            async with self._replacing:
                line = self._line
            try:
                scores: Floats = await line.ask(rollout)
            except ProcessDiedError as died:
                await self._lost(line.process, died)
                continue
            return scores

    async def _call(self, name: str, argument: Any) -> None:
        while True:
            async with self._replacing:
                process = self._process
            try:
                return await self._asked(process, name, argument)
            except ProcessDiedError as died:
                await self._lost(process, died)

    async def _asked(self, process: Process, name: str, argument: Any) -> None:
        within_s = self._deadlines.publish_s
        try:
            await process.call(name, argument, deadline="publish_s", within_s=within_s)
        except StalledError:
            raise ProcessDiedError(
                f"{process.who} did not come back from {name} within placement.deadlines.publish_s = {within_s:g} "
                "seconds, and is ended"
            ) from None

    async def _lost(self, process: Process, died: ProcessDiedError) -> None:
        """Start another process that holds what this one held, unless somebody who noticed earlier has done so."""
        async with self._replacing:
            while self._process is process:
                await asyncio.to_thread(process.end)
                self._restarts.take(str(died))
                self._process = successor = self._start()
                try:
                    await successor.starting(self._deadlines.start_s)
                    for publication in list(self._needed.values()):
                        await self._asked(successor, "load", publication)
                except ProcessDiedError as again:
                    process, died = successor, again
                    continue
                self._line = self._new_line()
                self._notices.process(successor.facts)

    def _new_line(self) -> Line:
        return Line(self._process, deadline="step_s", within_s=self._deadlines.step_s)
