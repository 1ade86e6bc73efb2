"""Slots, and the order in which groups leave: what bounds staleness.

A slot is taken when a group is admitted and freed only after the weights that follow its use are published. With
``capacity`` slots and P groups a step, at most ``capacity / P`` steps of data exist between the weights that made a
group and the step that uses it, the time in the queue included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from tether.records import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferState:
    """What a buffer holds between two steps; what was taken and not used yet counts as not taken."""

    admitted: int
    used: int
    freed: int
    groups: tuple[Group, ...]
    """Finished and not used, in the order of their index."""


class GroupBuffer:
    """Finished groups, handed out in the order of admission.

    Args:
        capacity: slots.
        state: what an earlier buffer held, to go on from.

    >>> async def one():
    ...     buffer = GroupBuffer(capacity=1)
    ...     index = await buffer.admit()
    ...     buffer.finish(Group(id="g0", index=index, rollouts=()))
    ...     return [group.id for group in await buffer.take(1)]
    >>> asyncio.run(one())
    ['g0']
    """

    def __init__(self, capacity: int, state: BufferState | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a buffer needs at least one slot; got {capacity}")
        state = state or BufferState(admitted=0, used=0, freed=0, groups=())
        self._capacity = capacity
        self._admitted = state.admitted
        self._taken = self._used = state.used
        self._freed = state.freed
        self._held = {group.index: group for group in state.groups}
        self._room, self._ready, self._settled = _Gate(), _Gate(), _Gate()

    @property
    def num_admitted(self) -> int:
        """Groups that have got a slot so far."""
        return self._admitted

    @property
    def num_done(self) -> int:
        """Groups that have been finished so far, used or not."""
        return self._used + len(self._held)

    @property
    def num_in_generation(self) -> int:
        """Groups admitted and not finished yet."""
        return self._admitted - self.num_done

    def state(self) -> BufferState:
        """Everything it holds."""
        groups = tuple(self._held[index] for index in sorted(self._held))
        return BufferState(admitted=self._admitted, used=self._used, freed=self._freed, groups=groups)

    async def admit(self) -> int:
        """Take a slot, waiting for one to be freed; the index of the group that may now be generated."""
        while self._admitted - self._freed >= self._capacity:
            await self._room.wait()
        self._admitted += 1
        return self._admitted - 1

    def finish(self, group: Group) -> None:
        """Store a finished group."""
        assert self._taken <= group.index < self._admitted, group.index
        assert group.index not in self._held, group.index
        self._held[group.index] = group
        self._ready.open()
        self._settled.open()

    async def take(self, count: int) -> tuple[Group, ...]:
        """The next ``count`` groups in the order of admission, waiting until all are finished. Frees no slot."""
        wanted = range(self._taken, self._taken + count)
        while not self._has(wanted):
            await self._ready.wait()
        self._taken += count
        return tuple(self._held[index] for index in wanted)

    def retire(self, count: int) -> None:
        """Forget the oldest ``count`` groups taken: a step has used them."""
        assert self._used + count <= self._taken, f"retired {count} of {self._taken - self._used} groups taken"
        for index in range(self._used, self._used + count):
            del self._held[index]
        self._used += count

    async def settle(self) -> None:
        """Wait until no admitted group is in generation: only then may new weights be loaded between generations."""
        while self.num_in_generation:
            await self._settled.wait()

    def free(self, count: int) -> None:
        """Give back the slots of ``count`` used groups; called after publication, and nowhere else."""
        self._freed += count
        assert self._freed <= self._used, f"freed {self._freed} slots of {self._used} groups used"
        self._room.open()

    def _has(self, wanted: Sequence[int]) -> bool:
        return all(index in self._held for index in wanted)


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
