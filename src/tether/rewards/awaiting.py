"""Coroutines awaited from plain code: in an event loop of their own, in a thread that lasts."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Sequence


def awaited(calls: Sequence[Callable[[], Awaitable[object]]], *, at_once: int, limit_s: float) -> list[object]:
    """What came of each call, in order: its result, or the exception that it raised; blocks until all are done.

    The loop is one of real time whatever loop the caller runs in, and the same for all calls of a process, so that
    connections can be kept from one to the next.

    Args:
        calls: each begins a coroutine.
        at_once: how many of them run at the same time.
        limit_s: real seconds that one may take; then it is cancelled, and a ``TimeoutError`` came of it.

    >>> async def half(number):
    ...     await asyncio.sleep(0.001)
    ...     return 1 / number
    >>> awaited([functools.partial(half, 2), functools.partial(half, 0)], at_once=2, limit_s=9.0)
    [0.5, ZeroDivisionError('division by zero')]
    """
    work = asyncio.run_coroutine_threadsafe(_all(calls, at_once, limit_s), _loop())
    try:
        return work.result()
    except BaseException:  # whoever waits was interrupted; what hangs may hold up the loop, so the next gets another
        work.cancel()
        _loop.cache_clear()
        raise


async def _all(calls: Sequence[Callable[[], Awaitable[object]]], at_once: int, limit_s: float) -> list[object]:
    seats = asyncio.Semaphore(at_once)

    async def one(call: Callable[[], Awaitable[object]]) -> object:
        async with seats:
            try:
                async with asyncio.timeout(limit_s) as limit:
                    return await call()
            except (Exception, SystemExit) as error:
                if limit.expired():
                    return TimeoutError(f"nothing came within limit_s = {limit_s:g} seconds; raise it if that is slow")
                return error

    return await asyncio.gather(*(one(call) for call in calls))


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="tether-awaits", daemon=True).start()
    return loop
