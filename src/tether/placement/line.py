"""Work given to a process piece by piece: one letter a turn of the event loop, and one call that waits for results."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

from tether.errors import StalledError
from tether.placement.ray_process import Process, ProcessDiedError


class Line:
    """The near end of a ``Desk`` in another process.

    Everything asked for in one turn of the loop travels together, and so does everything that is done when the desk is
    asked; no call is made for a single piece. At most one call waits for results, and none while nothing is asked.

    Args:
        process: where the desk is.
        deadline: name of the longest time without any result while something is asked, and
        within_s: its seconds. A process that passes it is ended.
    """

    def __init__(self, process: Process, *, deadline: str, within_s: float) -> None:
        self.process = process
        self.busy_s = 0.0
        """Real seconds that the process worked, as far as known here."""
        self._deadline, self._within_s = deadline, within_s
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._outbox: dict[int, Any] = {}
        self._unwanted: list[int] = []
        self._num_tickets = 0
        self._is_flushing = False
        self._collecting: asyncio.Task[None] | None = None

    async def ask(self, piece: Any) -> Any:
        """Have a piece of work done; what came of it. Its errors are raised here, and a cancellation ends it there.

        Raises:
            ProcessDiedError: the process is gone, and with it what was asked.
        """
        self._num_tickets += 1
        ticket, future = self._num_tickets, asyncio.get_running_loop().create_future()
        self._open[ticket], self._outbox[ticket] = future, piece
        self._flush_soon()
        try:
            return await future
        except asyncio.CancelledError:
            if self._open.pop(ticket, None) is not None:
                self._unwanted.append(ticket)
                self._flush_soon()
            raise

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        pieces, self._outbox = self._outbox, {}
        unwanted, self._unwanted = self._unwanted, []
        if unwanted:
            self.process.post("cancel", unwanted)
        if pieces:
            try:
                letter = pickle.dumps(list(pieces.values()), pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # something in it does not travel
                for ticket in pieces:
                    self._fail(ticket, error)
                return
            self.process.post("submit", list(pieces), letter)
        if self._open and (self._collecting is None or self._collecting.done()):
            name = f"collect from {self.process.role}"
            self._collecting = asyncio.get_running_loop().create_task(self._collect(), name=name)

    async def _collect(self) -> None:
        try:
            while self._open:
                letter, _ = await self.process.call("collect", deadline=self._deadline, within_s=self._within_s)
                outcomes, self.busy_s = pickle.loads(letter)
                for ticket, went_well, value in outcomes:
                    if (future := self._open.pop(ticket, None)) is None or future.done():
                        continue
                    if went_well:
                        future.set_result(value)
                    else:
                        future.set_exception(value)
        except StalledError:
            self._lose(
                ProcessDiedError(
                    f"{self.process.who} gave nothing for placement.deadlines.{self._deadline} = {self._within_s:g} "
                    f"seconds while {len(self._open)} pieces of work were under way, and is ended"
                )
            )
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Nothing more comes."""
        for ticket in list(self._open):
            self._fail(ticket, error)

    def _fail(self, ticket: int, error: Exception) -> None:
        future = self._open.pop(ticket)
        if not future.done():
            again = ProcessDiedError(str(error)) if isinstance(error, ProcessDiedError) else error
            future.set_exception(again)  # one of its own: each is raised, and collects a traceback
