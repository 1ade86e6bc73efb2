"""Slots, and the order in which groups leave: what bounds staleness.

A slot is taken when a group is admitted and freed only after the weights that follow its use are published. With
``capacity`` slots and P groups a step, at most ``capacity / P`` steps of data exist between the weights that made a
group and the step that uses it, the time in the queue included.
"""

from __future__ import annotations

import asyncio

from tether.records import Group


class GroupBuffer:
    """Finished groups, handed out in the order of admission.

    >>> async def one():
    ...     buffer = GroupBuffer(capacity=1)
    ...     index = await buffer.admit()
    ...     await buffer.finish(Group(id="g0", index=index, rollouts=()))
    ...     return [group.id for group in await buffer.take(1)]
    >>> asyncio.run(one())
    ['g0']
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a buffer needs at least one slot; got {capacity}")
        self._capacity = capacity
        self._admitted = 0
        self._freed = 0
        self._taken = 0
        self._finished: dict[int, Group] = {}
        self._changed = asyncio.Condition()

    @property
    def num_in_generation(self) -> int:
        """Groups admitted and not finished yet."""
        return self._admitted - self._taken - len(self._finished)

    @property
    def num_finished(self) -> int:
        """Groups that wait to be taken."""
        return len(self._finished)

    async def admit(self) -> int:
        """Take a slot, waiting for one to be freed; the index of the group that may now be generated."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._admitted - self._freed < self._capacity)
            self._admitted += 1
            return self._admitted - 1

    async def finish(self, group: Group) -> None:
        """Store a finished group."""
        async with self._changed:
            assert self._taken <= group.index < self._admitted, group.index
            assert group.index not in self._finished, group.index
            self._finished[group.index] = group
            self._changed.notify_all()

    async def take(self, count: int) -> tuple[Group, ...]:
        """The next ``count`` groups in the order of admission, waiting until all are finished. Frees no slot."""
        async with self._changed:
            wanted = range(self._taken, self._taken + count)
            await self._changed.wait_for(lambda: all(index in self._finished for index in wanted))
            self._taken += count
            return tuple(self._finished.pop(index) for index in wanted)

    async def settle(self) -> None:
        """Wait until no admitted group is in generation: only then may new weights be loaded between generations."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_in_generation == 0)

    async def free(self, count: int) -> None:
        """Give back the slots of ``count`` used groups; called after publication, and nowhere else."""
        async with self._changed:
            self._freed += count
            assert self._freed <= self._taken, f"freed {self._freed} slots of {self._taken} groups taken"
            self._changed.notify_all()
