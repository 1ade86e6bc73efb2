"""Work that arrives piece by piece in a process, and leaves it as soon as some of it is done."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tether.errors import TetherError

Outcome = tuple[int, bool, Any]
"""Of a piece of work: its ticket, whether it went well, and its result or its error."""


class Desk:
    """Works on what is submitted, all at once, and hands out what is done to whoever collects.

    It is the far end of a ``Line``. A letter is a pickle: arrays in it are the receiver's own, where Ray would leave
    them in shared memory for as long as one of them lives.

    Args:
        work: one piece of it.
        busy_s: real seconds worked so far.

    >>> async def double(number):
    ...     return 2 * number
    >>> async def main():
    ...     desk = Desk(double, lambda: 0.5)
    ...     await desk.submit([7, 8], pickle.dumps([20, "ab"]))
    ...     return pickle.loads(await desk.collect())
    >>> asyncio.run(main())
    ([(7, True, 40), (8, True, 'abab')], 0.5)
    """

    def __init__(self, work: Callable[[Any], Awaitable[Any]], busy_s: Callable[[], float]) -> None:
        self._work, self._busy_s = work, busy_s
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._done: list[Outcome] = []
        self._is_worth_coming = asyncio.Event()

    async def submit(self, tickets: Sequence[int], letter: bytes) -> None:
        """Begin with what a letter holds, a ticket each."""
        try:
            pieces = pickle.loads(letter)
        except Exception as error:  # a class that this process lacks, or that cannot be made again
            self._hand_out([(ticket, False, _portable(error)) for ticket in tickets])
            return
        for ticket, piece in zip(tickets, pieces, strict=True):
            task = asyncio.get_running_loop().create_task(self._do(ticket, piece))
            self._tasks[ticket] = task

    async def cancel(self, tickets: Sequence[int]) -> None:
        """Nobody waits for these any more."""
        for ticket in tickets:
            if ticket in self._tasks:
                self._tasks[ticket].cancel()
        self._is_worth_coming.set()  # whoever collects may have nothing left to wait for

    async def collect(self) -> bytes:
        """Wait until something is done, and hand out all that is, with the seconds worked."""
        await self._is_worth_coming.wait()
        await asyncio.sleep(0)  # what ends at one moment goes in one letter
        self._is_worth_coming.clear()
        done, self._done = self._done, []
        return pickle.dumps((done, self._busy_s()), pickle.HIGHEST_PROTOCOL)

    async def _do(self, ticket: int, piece: Any) -> None:
        try:
            self._hand_out([(ticket, True, await self._work(piece))])
        except Exception as error:
            self._hand_out([(ticket, False, _portable(error))])
        finally:
            del self._tasks[ticket]

    def _hand_out(self, outcomes: Sequence[Outcome]) -> None:
        self._done.extend(outcomes)
        self._is_worth_coming.set()


def _portable(error: Exception) -> Exception:
    """The error itself if it survives the way, else what it says.

    >>> class Own(Exception):
    ...     def __init__(self, one, two): super().__init__(one + two)
    >>> _portable(Own("a", "b")), _portable(KeyError("x"))
    (TetherError('Own: ab'), KeyError('x'))
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return TetherError(f"{type(error).__name__}: {error}")
    return error
