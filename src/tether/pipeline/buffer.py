"""Slots, and the order in which groups leave: what bounds staleness.

A slot is taken when a group is admitted. A group that is used gives it back only after the weights that follow its use
are published; one that leaves unused gives it back at once. With C slots and P groups a batch, at most
``ceil((C + window) / P)`` batches are made between the weights that a group began with and its own use, the time in
the queue included. ``docs/staleness.md`` has the proof.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tether.records import Group

NOBODY = 2**62
"""Above every index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """What a buffer holds between two batches."""

    admitted: int
    used: int
    freed: int
    """Used groups whose slots are free again."""
    removed: int
    """Groups that left without being used."""
    unfinished: tuple[int, ...]
    """Admitted and still in generation, by index."""
    groups: tuple[Group, ...]
    """Finished and not used, in the order of their index."""
    batches: tuple[tuple[int, ...], ...]
    """Of those, the ones that were taken, batch by batch."""
    overtakers: tuple[int, ...]
    """Used groups that are younger than the oldest that is not."""


_EMPTY = BufferState(admitted=0, used=0, freed=0, removed=0, unfinished=(), groups=(), batches=(), overtakers=())


class GroupBuffer:
    """Finished groups, handed out oldest first.

    Args:
        capacity: slots.
        wanted: groups that are to be used in all; no more are admitted than can still be.
        window: by how many younger groups one may be overtaken; 0 is the order of admission.

    >>> async def one():
    ...     buffer = GroupBuffer(capacity=1, wanted=1)
    ...     index = await buffer.admit()
    ...     buffer.finish(Group(id="g0", index=index, rollouts=()))
    ...     return [group.id for group in buffer.take(1)]
    >>> asyncio.run(one())
    ['g0']
    """

    def __init__(self, capacity: int, wanted: int, window: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"a buffer needs at least one slot; got {capacity}")
        self._capacity, self._wanted, self._window = capacity, wanted, window
        self._room, self._ready, self._settled = _Gate(), _Gate(), _Gate()
        self.restore(_EMPTY)

    def restore(self, state: BufferState) -> None:
        """Go on from what a buffer held, before anybody waits for this one."""
        self._admitted, self._used, self._freed, self._removed = state.admitted, state.used, state.freed, state.removed
        self._held = {group.index: group for group in state.groups}
        self._taken = deque(state.batches)
        self._again = deque(state.batches)  # taken before the state was told, and handed out again first
        inside = {index for batch in state.batches for index in batch}
        self._unfinished = _Oldest(state.unfinished)
        self._finished = _Oldest(index for index in self._held if index not in inside)
        self._overtakers = list(state.overtakers)

    @property
    def num_admitted(self) -> int:
        """Groups that have got a slot so far."""
        return self._admitted

    @property
    def num_used(self) -> int:
        """Groups that were used so far."""
        return self._used

    @property
    def num_in_generation(self) -> int:
        """Groups admitted and not finished yet."""
        return len(self._unfinished)

    @property
    def num_waiting(self) -> int:
        """Groups finished that no batch has taken."""
        return len(self._finished)

    @property
    def num_free(self) -> int:
        """Slots that nobody has."""
        return self._capacity - (self._admitted - self._removed - self._freed)

    @property
    def held(self) -> tuple[Group, ...]:
        """Groups finished and not used, in the order of their index."""
        return tuple(self._held[index] for index in sorted(self._held))

    @property
    def queued(self) -> tuple[Group, ...]:
        """Of those, the ones that no batch has taken."""
        return tuple(self._held[index] for index in self._finished)

    def state(self) -> BufferState:
        """Everything it holds."""
        return BufferState(
            admitted=self._admitted,
            used=self._used,
            freed=self._freed,
            removed=self._removed,
            unfinished=tuple(self._unfinished),
            groups=self.held,
            batches=tuple(self._taken),
            overtakers=tuple(self._overtakers),
        )

    async def room(self) -> None:
        """Wait until another group is wanted and has a slot."""
        while not self._may_admit:
            await self._room.wait()

    async def admit(self) -> int:
        """Take a slot, waiting for room; the index of the group that may now be generated."""
        await self.room()
        self._unfinished.add(self._admitted)
        self._admitted += 1
        return self._admitted - 1

    def finish(self, group: Group) -> None:
        """Store a finished group."""
        self._unfinished.discard(group.index)
        self._held[group.index] = group
        self._finished.add(group.index)
        self._changed()

    def remove(self, index: int) -> None:
        """A group leaves without being used, while it is generated or while it waits; its slot is free at once."""
        if index in self._unfinished:
            self._unfinished.discard(index)
        else:
            self._finished.discard(index)
            del self._held[index]
        self._removed += 1
        self._forget_overtakers()
        self._room.open()
        self._changed()

    def take_again(self) -> tuple[Group, ...] | None:
        """The next of the batches that were taken before a checkpoint; ``None`` when there are no more."""
        return tuple(self._held[index] for index in self._again.popleft()) if self._again else None

    def take(self, count: int) -> tuple[Group, ...] | None:
        """The oldest ``count`` finished groups; ``None`` while there are too few, or while a group that is not
        finished would be overtaken too often. Frees no slot."""
        if not (chosen := self._pick(count)):
            return None
        self._taken.append(chosen)
        return tuple(self._held[index] for index in chosen)

    def may_take(self, count: int) -> bool:
        """Whether ``take`` would choose a batch."""
        chosen = self._pick(count)
        for index in chosen:
            self._finished.add(index)
        return bool(chosen)

    def change(self) -> asyncio.Future[None]:
        """Done when ``take`` may have another answer."""
        return self._ready.wait()

    def retire(self) -> None:
        """Forget the groups of the oldest batch taken: it was used."""
        batch = self._taken.popleft()
        for index in batch:
            del self._held[index]
        self._used += len(batch)
        self._overtakers += batch
        self._forget_overtakers()

    async def settle(self) -> None:
        """Wait until no group is in generation and none may be admitted: only then may new weights be loaded between
        generations."""
        while self.num_in_generation or self._may_admit:
            await self._settled.wait()

    def free(self) -> None:
        """Give back the slots of all used groups; called after publication, and nowhere else."""
        self._freed = self._used
        self._room.open()

    @property
    def _may_admit(self) -> bool:
        return self.num_free > 0 and self._admitted - self._removed < self._wanted

    def _changed(self) -> None:
        self._ready.open()
        self._settled.open()

    def _pick(self, count: int) -> tuple[int, ...]:
        """The next batch, no longer among the finished; empty if there is none."""
        if len(self._finished) < count:
            return ()
        chosen = tuple(self._finished.pop() for _ in range(count))
        if self._overtaken(chosen) <= self._window:
            return chosen
        for index in chosen:
            self._finished.add(index)
        return ()

    def _overtaken(self, chosen: tuple[int, ...]) -> int:
        """How many younger groups would have left before the oldest that stays, if ``chosen`` left."""
        oldest = min(self._unfinished.first, self._finished.first)
        left = (*chosen, *(index for batch in self._taken for index in batch), *self._overtakers)
        return sum(index > oldest for index in left)

    def _forget_overtakers(self) -> None:
        taken = min((index for batch in self._taken for index in batch), default=NOBODY)
        oldest = min(self._unfinished.first, self._finished.first, taken)
        self._overtakers = [index for index in self._overtakers if index > oldest]


class _Oldest:
    """A set of indices whose smallest is at hand: each operation in O(log n), amortized."""

    def __init__(self, indices: Iterator[int] | tuple[int, ...] = ()) -> None:
        self._heap = sorted(indices)
        self._members = set(self._heap)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, index: int) -> bool:
        return index in self._members

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._members))

    @property
    def first(self) -> int:
        """The smallest; ``NOBODY`` if there is none."""
        while self._heap and self._heap[0] not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else NOBODY

    def add(self, index: int) -> None:
        assert index not in self._members, index
        self._members.add(index)
        heapq.heappush(self._heap, index)

    def discard(self, index: int) -> None:
        assert index in self._members, index
        self._members.remove(index)

    def pop(self) -> int:
        """Take the smallest out."""
        index = self.first
        self._members.remove(index)
        heapq.heappop(self._heap)
        return index


class _Gate:
    """Where a loop waits for something to change. One gate for each kind of change, so that who is woken when
    depends on what happened, never on who began to wait first."""

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    def wait(self) -> asyncio.Future[None]:
        """Done at the next ``open``; look again then."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        return waiter

    def open(self) -> None:
        """Wake whoever waits."""
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
