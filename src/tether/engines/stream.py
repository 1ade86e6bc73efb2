"""Completions asked for one by one, decoded together: they join and leave a running batch between blocks of tokens.

A task decodes block after block while there is anything to decode, and ends when there is not. After each block it
waits for the moment at which its tokens are due; there other parts run, weights may change, callers may go.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from tether.engines.busy import Busy
from tether.errors import DataError
from tether.ports import Clock, GenerationRequest
from tether.records import Completion


@runtime_checkable
class Row(Protocol):
    """A completion in the making."""

    request: GenerationRequest
    has_left: bool
    """Whether nobody waits for it any more."""

    def completion(self) -> Completion:
        """The tokens so far."""
        ...


@runtime_checkable
class Rows(Protocol):
    """Completions decoded together, in blocks of tokens."""

    @property
    def drafts(self) -> Sequence[Row]:
        """Those that have not ended."""
        ...

    def join(self, requests: Sequence[GenerationRequest]) -> None:
        """Let these be decoded from the next block on."""
        ...

    def recompute(self) -> None:
        """Compute the caches of all rows anew in the next block."""
        ...

    def clear(self) -> None:
        """Forget all rows."""
        ...

    def advance(self, version: int, most: int) -> tuple[int, Sequence[Row]]:
        """Draw up to ``most`` tokens a row with the weights as they are, which have this version; how many forward
        passes it took one after the other, and who ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a stream is decoded."""

    max_rows: int
    """Most completions decoded together."""
    yield_every: int
    """Tokens of a block."""
    least_share: float
    """Of the rows: fewer free ones are not filled while more wait than would fit. Nobody starves, for rows have
    limits."""


@dataclass(slots=True, eq=False)
class _Caller:
    """Who waits for a completion."""

    request: GenerationRequest
    future: asyncio.Future[Completion] | None
    """``None`` if it was restored and has not asked again."""


class Stream:
    """What is under way of an engine: who asked, who waits for a row, and the rows."""

    def __init__(self, batch: Rows, pace: Pace, *, clock: Clock, version: Callable[[], int], busy: Busy) -> None:
        self._batch, self._pace, self._clock, self._version, self._busy = batch, pace, clock, version, busy
        self._asked: dict[str, _Caller] = {}
        """Callers, in the order in which they asked."""
        self._num_missing = 0
        """Callers that were restored and have not asked again."""
        self._waiting: dict[str, GenerationRequest] = {}
        """Who has no row yet."""
        self._ended: dict[str, Completion] = {}
        """What is due to callers when the last block is."""
        self._until_s: float | None = None
        """When the last block is due."""
        self._holds = 0
        """How many want no newcomer to join."""
        self._task: asyncio.Task[None] | None = None
        self._drains: list[asyncio.Future[None]] = []

    async def ask(self, request: GenerationRequest) -> Completion:
        """Wait for a completion; one that was under way when the stream was saved goes on."""
        caller = self._asked.get(request.id)
        if caller is None:
            caller = self._asked[request.id] = _Caller(request, None)
            self._waiting[request.id] = request if request.so_far else replace(request, so_far=None)
        elif caller.future is not None:
            raise DataError(
                f"requests under way must have ids of their own; {request.id!r} is being sampled already: await it"
            )
        elif replace(request, so_far=None) != replace(caller.request, so_far=None):
            raise DataError(
                f"a saved completion continues with the request it was begun for; {request.id!r} comes with another "
                "prompt, seed or limit: give that of the checkpoint"
            )
        else:
            self._num_missing -= 1
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        caller.future = future
        self._wake()
        try:
            return await future
        except asyncio.CancelledError:
            if self._asked.get(request.id) is caller:
                self._forget(request.id)
            raise

    def progress(self) -> dict[str, Completion]:
        """Everything sampled so far that no caller has."""
        made = {name: r.so_far for name, r in self._waiting.items() if r.so_far is not None}
        made |= {draft.request.id: draft.completion() for draft in self._batch.drafts}
        made |= self._ended
        return {name: made[name] for name in self._asked if name in made and len(made[name])}

    def recompute(self) -> None:
        """Compute the caches of all rows anew in the next block."""
        self._batch.recompute()

    def interrupt(self) -> None:
        """Send all rows back as they are, when the last block is due; who waits for a row goes on waiting."""
        self._ended |= {draft.request.id: draft.completion() for draft in self._batch.drafts}
        self._batch.clear()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let no newcomer join meanwhile."""
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            asyncio.get_running_loop().call_soon(self._wake)  # if everything is being cancelled: after that

    async def drained(self) -> None:
        """Wait until no row is left and all that ended are with their callers."""
        while self._batch.drafts or self._ended:
            drain = asyncio.get_running_loop().create_future()
            self._drains.append(drain)
            await drain

    def state(self) -> dict[str, Any]:
        """Everything there is but the rows, as plain values and records."""
        return {
            "asked": [replace(caller.request, so_far=None) for caller in self._asked.values()],
            "waiting": list(self._waiting.values()),
            "ended": dict(self._ended),
            "until_s": self._until_s,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Become the stream that was saved, after the rows; it goes on once all callers have asked again."""
        self._asked = {request.id: _Caller(request, None) for request in state["asked"]}
        self._num_missing = len(self._asked)
        self._waiting = {request.id: request for request in state["waiting"]}
        self._ended = dict(state["ended"])
        self._until_s = state["until_s"]

    def _wake(self) -> None:
        """Begin to decode if there is anything to, unless that goes on or somebody has not asked again."""
        if self._task is not None or self._num_missing:
            return
        if not (self._batch.drafts or self._ended or (self._waiting and not self._holds)):
            return
        # In a context of its own: what the caller's clock counts as free, or its task's name, is not the stream's.
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name="tether-engine", context=contextvars.Context()
        )

    async def _run(self) -> None:
        try:
            while True:
                if self._until_s is not None:
                    await self._clock.until(self._until_s)
                    self._until_s = None
                self._hand_over()
                await self._clock.quiet()  # whoever asks at this moment joins the same block
                if not self._advance() and not self._ended:  # rows may have been sent back since the hand-over
                    break
        except asyncio.CancelledError:
            for caller in self._asked.values():
                if caller.future is not None:
                    caller.future.cancel()
            self._until_s = None  # a moment of a clock that may be gone
            raise
        except Exception as error:
            self._fail(error)
        finally:
            self._task = None
            drains, self._drains = self._drains, []
            for drain in drains:
                if not drain.done():
                    drain.set_result(None)

    def _advance(self) -> bool:
        """Let who waits join, and decode a block; whether there was one."""
        free = self._pace.max_rows - len(self._batch.drafts)
        if not self._holds and (free >= len(self._waiting) or free >= self._pace.least_share * self._pace.max_rows):
            joining = list(self._waiting)[:free]
            self._batch.join([self._waiting.pop(name) for name in joining])
        if not self._batch.drafts:
            return False
        with self._busy:
            passes, ended = self._batch.advance(self._version(), self._pace.yield_every)
        self._until_s = self._clock.due("generate_token", float(passes))
        self._ended |= {draft.request.id: draft.completion() for draft in ended}
        return True

    def _hand_over(self) -> None:
        """Give what has ended to its callers, in the order in which they asked."""
        if not self._ended:
            return
        for name in [name for name in self._asked if name in self._ended]:
            future = self._asked.pop(name).future
            assert future is not None, "the stream goes on once everybody has asked again"
            if not future.done():
                future.set_result(self._ended[name])
        self._ended = {}

    def _forget(self, name: str) -> None:
        """A caller has gone."""
        del self._asked[name]
        self._waiting.pop(name, None)
        self._ended.pop(name, None)
        for draft in self._batch.drafts:
            draft.has_left = draft.has_left or draft.request.id == name

    def _fail(self, error: Exception) -> None:
        """Nothing can go on: everybody hears why."""
        futures = [caller.future for caller in self._asked.values()]
        self._asked, self._waiting, self._ended = {}, {}, {}
        self._batch.clear()
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # a caller that is cancelled before it hears of it is no fault
