"""Who may go in while something changes, and whether all are out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Gate:
    """Lets callers pass while it is open, and tells when nobody is inside.

    >>> async def main():
    ...     gate = Gate()
    ...     with gate.held():
    ...         print(gate.is_closed)
    ...     await gate.passed()
    ...     await gate.emptied(0)
    ...     print(gate.is_closed)
    >>> asyncio.run(main())
    True
    False
    """

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()

    @property
    def is_closed(self) -> bool:
        """Whether callers wait."""
        return not self._open.is_set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Closed inside."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def passed(self) -> None:
        """Wait until it is open."""
        while not self._open.is_set():
            await self._open.wait()

    def left(self, inside: int) -> None:
        """Somebody went out; so many are inside."""
        if not inside:
            self._empty.set()

    async def emptied(self, inside: int) -> None:
        """Wait until nobody is inside any more; so many are."""
        if inside:
            self._empty.clear()
            await self._empty.wait()
