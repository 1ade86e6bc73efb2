import asyncio

import pytest

from tether.errors import StalledError
from tether.pipeline.buffer import GroupBuffer
from tether.placement.virtual_time import VirtualLoop
from tether.records import Group


def group(index: int) -> Group:
    return Group(id=f"g{index}", index=index, rollouts=())


def buffered(main):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main())


async def filled(capacity: int, *, window: int = 0, finished: tuple[int, ...] = ()) -> GroupBuffer:
    """All slots taken, and some groups finished."""
    buffer = GroupBuffer(capacity, 100, window)
    for _ in range(capacity):
        await buffer.admit()
    for index in finished:
        buffer.finish(group(index))
    return buffer


def taken(buffer: GroupBuffer, count: int) -> list[int] | None:
    groups = buffer.take(count)
    return None if groups is None else [group.index for group in groups]


@pytest.mark.parametrize("does", ["take", "retire"])
def test_neither_taking_nor_use_frees_a_slot(does):
    async def main():
        buffer = await filled(1, finished=(0,))
        buffer.take(1)
        if does == "retire":
            buffer.retire()
        await buffer.admit()

    with pytest.raises(StalledError, match=r"GroupBuffer\.room"):
        buffered(main)


def test_publication_frees_the_slots_of_all_groups_used_and_of_no_other():
    async def main():
        buffer = await filled(4, finished=(0, 1, 2, 3))
        buffer.take(1), buffer.take(1), buffer.take(1)
        buffer.retire(), buffer.retire()
        assert buffer.num_free == 0
        buffer.free()
        assert (buffer.num_free, buffer.num_used) == (2, 2)

    buffered(main)


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_group_that_leaves_unused_frees_its_slot_at_once(is_finished):
    async def main():
        buffer = await filled(2, finished=(1,) if is_finished else ())
        buffer.remove(1)
        assert buffer.num_free == 1
        assert await buffer.admit() == 2
        assert [group.index for group in buffer.held] == []

    buffered(main)


def test_without_a_window_groups_leave_in_the_order_of_admission():
    async def main():
        buffer = await filled(4, finished=(1, 2, 3))
        assert taken(buffer, 2) is None
        buffer.finish(group(0))
        assert [taken(buffer, 2), taken(buffer, 2), taken(buffer, 2)] == [[0, 1], [2, 3], None]

    buffered(main)


def test_a_window_lets_a_group_be_overtaken_so_often_and_no_more():
    async def main():
        buffer = await filled(6, window=2, finished=(1, 2, 3, 4, 5))
        assert taken(buffer, 2) == [1, 2]
        buffer.retire()
        assert taken(buffer, 1) is None
        buffer.finish(group(0))
        assert [taken(buffer, 2), taken(buffer, 2)] == [[0, 3], [4, 5]]

    buffered(main)


def test_the_window_counts_anew_when_the_group_that_was_overtaken_is_removed():
    async def main():
        buffer = await filled(5, window=1, finished=(1, 2, 4))
        assert [taken(buffer, 1), taken(buffer, 1)] == [[1], None]
        buffer.remove(0)
        assert [taken(buffer, 1), taken(buffer, 1), taken(buffer, 1)] == [[2], [4], None]

    buffered(main)


def test_generation_settles_when_no_group_is_in_generation_and_none_may_be_admitted():
    async def main():
        buffer = await filled(2, finished=(0,))
        settled = asyncio.ensure_future(buffer.settle())
        buffer.remove(1)  # another may be admitted in its place
        await asyncio.sleep(1)
        assert not settled.done()
        await buffer.admit()
        await asyncio.sleep(1)
        assert not settled.done()
        buffer.finish(group(2))
        await settled

    buffered(main)


def test_no_more_groups_are_admitted_than_are_wanted_and_those_removed_are_replaced():
    async def main():
        buffer = GroupBuffer(5, 2)
        assert [await buffer.admit(), await buffer.admit()] == [0, 1]
        buffer.remove(0)
        assert await buffer.admit() == 2
        await buffer.admit()

    with pytest.raises(StalledError, match=r"GroupBuffer\.room"):
        buffered(main)


@pytest.mark.parametrize("wrong", ["twice", "never admitted", "taken already"])
def test_a_group_is_finished_once_and_only_after_admission(wrong):
    async def main():
        buffer = await filled(2, finished=(0,))
        if wrong == "taken already":
            buffer.take(1)
        buffer.finish(group(2 if wrong == "never admitted" else 0))

    with pytest.raises(AssertionError):
        buffered(main)


def test_a_restored_buffer_gives_batches_taken_before_again_and_keeps_slots_and_window():
    async def main():
        before = await filled(6, window=2, finished=(1, 2, 3, 4))
        assert [taken(before, 1), taken(before, 1)] == [[1], [2]]
        before.retire()
        after = GroupBuffer(6, 100, 2)
        after.restore(before.state())
        assert after.state() == before.state()
        assert (after.num_free, after.num_used, after.num_in_generation, after.num_waiting) == (0, 1, 2, 2)
        again = after.take_again()
        assert again is not None
        assert [group.index for group in again] == [2]
        assert after.take_again() is None
        assert taken(after, 1) is None
        after.retire()
        after.free()
        assert after.num_free == 2

    buffered(main)


def test_what_may_take_another_answer_is_told_to_whoever_waits():
    async def main():
        buffer = await filled(2)
        for change in (lambda: buffer.finish(group(0)), lambda: buffer.remove(1)):
            waiting = buffer.change()
            change()
            assert waiting.done()

    buffered(main)


def test_a_buffer_without_a_slot_is_refused():
    with pytest.raises(ValueError, match="at least one slot; got 0"):
        GroupBuffer(0, 1)
