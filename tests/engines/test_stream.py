"""Completions that join and leave a running batch, one by one."""

import asyncio
import dataclasses
from collections.abc import Coroutine
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from tests.engines.tiny import (
    VOCABULARY,
    NumberedStore,
    assert_equal_bits,
    assert_same,
    bits,
    build,
    engine_of,
    plain_forward,
    requests,
    state,
)
from tether.engines.torch import TorchEngine
from tether.errors import DataError, NonFiniteError
from tether.placement.inline import Inline, InlineClock
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Completion

TOKEN_S = 0.02
T = TypeVar("T")


def clock() -> InlineClock:
    return Inline().clock()


def run(main: Coroutine[Any, Any, T]) -> T:
    return Inline().run(main)


def alone(model: Any, asked: list[GenerationRequest], **options: Any) -> list[Completion]:
    return [asyncio.run(engine_of(model, dtype="float32", **options).answer([r]))[0] for r in asked]


def mixed(count: int, *, routing: bool = False) -> list[GenerationRequest]:
    """Prompts, limits, temperatures and alternatives that differ; every third prompt is that of the one before."""
    made = requests(count, max_tokens=24)
    return [
        dataclasses.replace(
            r,
            prompt_ids=made[i - (i % 3 == 2)].prompt_ids,
            max_tokens=r.max_tokens - i % 5 * 4,
            temperature=1.0 + i % 2 / 4,
            alternatives=i % 3,
            routing=routing and i % 4 != 1,
        )
        for i, r in enumerate(made)
    ]


async def late(engine: TorchEngine, request: GenerationRequest, delay_s: float) -> Completion:
    await asyncio.sleep(delay_s)
    return await engine.generate(request)


def assert_same_routes(got: list[Completion], expected: list[Completion]) -> None:
    for one, other in zip(got, expected, strict=True):
        assert (one.experts is None) == (other.experts is None)
        if one.experts is not None and other.experts is not None:
            assert one.experts.tolist() == other.experts.tolist()


@pytest.mark.parametrize("kind", ["moe", "eager", "sliding", "gpt2", "gpt-oss"])
@pytest.mark.parametrize("max_rows", [3, 8])
def test_rows_that_join_and_leave_are_sampled_as_if_alone(kind: str, max_rows: int) -> None:
    model = build(kind)
    asked = mixed(18, routing=kind in ("moe", "gpt-oss"))
    expected = alone(build(kind), asked)
    sizes: list[int] = []
    model.register_forward_pre_hook(lambda _, __, given: sizes.append(len(given["input_ids"])), with_kwargs=True)

    async def main() -> list[Completion]:
        engine = engine_of(model, clock=clock(), dtype="float32", yield_every=3, max_rows=max_rows)
        return await asyncio.gather(*(late(engine, r, 0.05 * (i * 7 % 11)) for i, r in enumerate(asked)))

    done = run(main())
    assert_same(done, expected)
    assert_same_routes(done, expected)
    assert max(sizes) <= max_rows
    assert len(set(sizes)) > 2


def test_those_that_join_together_read_a_shared_prompt_once_and_decode_on_with_the_others() -> None:
    model, shapes = build("moe"), []
    model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    base = dataclasses.replace(requests(1)[0], max_tokens=6)
    asked = [dataclasses.replace(base, id=str(i), seed=i) for i in range(5)]

    async def main() -> None:
        engine = engine_of(model, clock=clock(), eos_ids=(VOCABULARY,), yield_every=2)
        await asyncio.gather(*(late(engine, r, 0.01 * (i > 1)) for i, r in enumerate(asked)))

    run(main())
    prompt = (1, len(base.prompt_ids))
    # two rows; three more while they draw; all; then the three that came later
    assert shapes == [prompt, (2, 1), (2, 1), prompt, (5, 1), (5, 1), (5, 1), (3, 1), (3, 1)]


def test_columns_that_no_row_sees_leave_the_cache() -> None:
    long, short = requests(2)
    long = dataclasses.replace(long, prompt_ids=(5,) * 30, max_tokens=8)
    short = dataclasses.replace(short, prompt_ids=(6, 7), max_tokens=24)
    widths: list[int] = []

    async def main() -> None:
        engine = engine_of(build("moe"), clock=clock(), eos_ids=(VOCABULARY,), yield_every=4)
        both = asyncio.gather(engine.generate(long), engine.generate(short))
        for _ in range(7):
            await asyncio.sleep(4 * TOKEN_S)
            rows = engine._stream._batch._device
            widths.append(0 if rows is None else rows._width)
        await both

    run(main())
    assert widths[:3] == [33, 9, 13]  # both; the short one alone, which has read 2 + 7 tokens, then four more


def test_completions_come_when_their_last_block_is_due_in_the_order_asked() -> None:
    asked = [dataclasses.replace(r, max_tokens=limit) for r, limit in zip(requests(4), (9, 4, 16, 3), strict=True)]
    told: list[tuple[str, float]] = []

    async def one(engine: TorchEngine, time: InlineClock, request: GenerationRequest) -> None:
        await engine.generate(request)
        told.append((request.id, round(time.now() / TOKEN_S, 6)))

    async def main() -> None:
        time = clock()
        engine = engine_of(build("moe"), clock=time, eos_ids=(VOCABULARY,), yield_every=8)
        await asyncio.gather(*(one(engine, time, r) for r in asked))

    run(main())
    assert told == [("r1", 8), ("r3", 8), ("r0", 16), ("r2", 16)]


@pytest.mark.parametrize("kind", ["moe", "sliding"])
def test_a_completion_goes_on_from_any_token_as_if_it_had_not_been_interrupted(kind: str) -> None:
    asked = [dataclasses.replace(r, max_tokens=9, routing=kind == "moe", alternatives=2) for r in requests(5)]
    whole = alone(build(kind), asked, eos_ids=(VOCABULARY,))
    for count in range(9):
        begun = [cut(one, count) for one in whole]
        again = [dataclasses.replace(r, so_far=b) for r, b in zip(asked, begun, strict=True)]

        async def main(again: list[GenerationRequest] = again) -> list[Completion]:
            engine = engine_of(build(kind), clock=clock(), dtype="float32", eos_ids=(VOCABULARY,), yield_every=2)
            return await asyncio.gather(*map(engine.generate, again))

        done = run(main())
        assert_same(done, whole)
        assert_same_routes(done, whole)
        for one, before in zip(done, begun, strict=True):
            assert bits(cut(one, count)) == bits(before)


def cut(completion: Completion, count: int) -> Completion:
    """Its first tokens, as an engine tells of one under way."""
    names = ("token_ids", "logp", "entropy", "version", "cached_version", "top_k_ids", "top_k_logp")
    parts = {n: v[:count] for n in names if (v := getattr(completion, n)) is not None}
    experts = None
    if completion.experts is not None:
        experts = completion.experts[: len(completion.experts) - len(completion) + count].copy()
        experts[-1] = NO_EXPERT
    return dataclasses.replace(completion, finish="interrupted", experts=experts, **parts)


def test_routes_known_before_are_kept_where_a_completion_goes_on() -> None:
    (request,) = (dataclasses.replace(r, max_tokens=9, routing=True) for r in requests(1))
    (whole,) = alone(build("moe"), [request], eos_ids=(VOCABULARY,))
    begun = cut(whole, 5)
    assert begun.experts is not None
    begun.experts[:3] = 0
    begun.experts[4] = NO_EXPERT
    (done,) = alone(build("moe"), [dataclasses.replace(request, so_far=begun)], eos_ids=(VOCABULARY,))
    assert done.experts is not None
    assert whole.experts is not None
    assert (done.experts[:3] == 0).all()
    assert done.experts[3:].tolist() == whole.experts[3:].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": 4}, "has 4 tokens of 4 already"),
        ({"finish": "stop"}, r"has ended \(stop\)"),
        ({"token_ids": np.array([3, 3, 3, 1], np.int32)}, r"has ended \(interrupted\)"),
        ({"token_ids": np.array([3, 3, 3, 99], np.int32)}, r"must lie in 0 .. 23; request 'r0' goes on from 3 .. 99"),
        ({"alternatives": 2}, "asks for 2 and goes on from 0"),
        ({"experts": np.zeros((7, 2, 2), np.int8)}, r"must be \[\d+, 3, 2\]; request 'r0' has \[7, 2, 2\]"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused(change: dict[str, Any], message: str) -> None:
    numbers = np.zeros(4, np.float32)
    begun: dict[str, Any] = {"token_ids": np.full(4, 3, np.int32), "version": np.zeros(4, np.int32)}
    begun |= {"logp": numbers, "entropy": numbers, "finish": "interrupted"}
    begun |= {n: v for n, v in change.items() if n in ("finish", "token_ids", "experts")}
    of_request = {n: v for n, v in change.items() if n in ("max_tokens", "alternatives")}
    request = dataclasses.replace(requests(1)[0], routing="experts" in change, so_far=Completion(**begun))
    with pytest.raises(DataError, match=message):
        run(engine_of(build("moe"), clock=clock()).generate(dataclasses.replace(request, **of_request)))


def test_an_id_can_be_under_way_once() -> None:
    async def main() -> None:
        engine, request = engine_of(build("moe"), clock=clock()), requests(1)[0]
        first = asyncio.create_task(engine.generate(request))
        await asyncio.sleep(0)
        with pytest.raises(DataError, match="must have ids of their own; 'r0' is being sampled already"):
            await engine.generate(request)
        await first

    run(main())


def test_an_answer_takes_no_time_and_nobody_under_way_notices() -> None:
    asked, looks = mixed(12, routing=True), requests(7)

    async def main(looking: bool) -> tuple[list[Completion], float]:
        time = clock()
        engine = engine_of(build("moe"), clock=time, dtype="float32", yield_every=4, max_rows=5)
        running = asyncio.gather(*map(engine.generate, asked))
        if looking:
            for _ in range(3):
                await asyncio.sleep(0.05)
                before = time.now()
                assert_same(await engine.answer(looks), expected)
                assert time.now() == before
        return await running, time.now()

    expected = alone(build("moe"), looks)
    (seen, seen_s), (unseen, unseen_s) = run(main(True)), run(main(False))
    assert_equal_bits(seen, unseen)
    assert seen_s == unseen_s


@pytest.mark.parametrize("when_s", [0.0, 0.01, 0.08, 0.1, 0.2])
def test_a_caller_that_is_cancelled_takes_its_row_with_it_and_the_others_go_on(when_s: float) -> None:
    asked = [dataclasses.replace(r, max_tokens=20) for r in requests(9)]
    model = build("moe")
    expected = alone(build("moe"), asked, eos_ids=(VOCABULARY,))
    gone = {1, 2, 7}  # two that have rows, one that waits

    async def main() -> list[Completion | BaseException]:
        engine = engine_of(model, clock=clock(), dtype="float32", yield_every=4, max_rows=5, eos_ids=(VOCABULARY,))
        tasks = [asyncio.create_task(engine.generate(r)) for r in asked]
        await asyncio.sleep(when_s)
        for i in gone:
            tasks[i].cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert await engine.progress() == {}
        await settle()
        return done

    done = run(main())
    assert [isinstance(one, asyncio.CancelledError) for one in done] == [i in gone for i in range(9)]
    kept = [i for i in range(9) if i not in gone]
    assert_same([one for one in done if isinstance(one, Completion)], [expected[i] for i in kept])


async def settle() -> None:
    """The engine's task ends once nobody is under way."""
    await asyncio.sleep(1.0)
    assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


def test_the_task_ends_when_all_callers_are_gone_and_others_may_come_later() -> None:
    asked = requests(6)

    async def main() -> list[Completion]:
        engine = engine_of(build("moe"), clock=clock(), dtype="float32", max_rows=4)
        tasks = [asyncio.create_task(engine.generate(r)) for r in asked]
        await asyncio.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert await engine.progress() == {}
        await settle()
        return await asyncio.gather(*map(engine.generate, asked))

    assert_same(run(main()), alone(build("moe"), asked))


@pytest.mark.parametrize("engine_clock", ["virtual", "manual"])
def test_an_event_loop_may_end_in_the_middle(engine_clock: str) -> None:
    """Without a warning of tasks that are pending or errors that nobody heard; the engine serves the next loop."""
    engine = engine_of(build("moe"), clock=clock() if engine_clock == "virtual" else None, dtype="float32", max_rows=4)
    asked = requests(6)

    async def main(*, leave: bool) -> list[Completion]:
        tasks = [asyncio.create_task(engine.generate(r)) for r in asked]
        for _ in range(4):
            await asyncio.sleep(0)
        return [] if leave else await asyncio.gather(*tasks)

    runner = run if engine_clock == "virtual" else asyncio.run
    assert runner(main(leave=True)) == []
    assert asyncio.run(engine.progress()) == {}
    assert_same(runner(main(leave=False)), alone(build("moe"), asked))


def test_an_error_reaches_every_caller_and_the_engine_can_go_on() -> None:
    store = NumberedStore("float32")
    broken = dict(state(build("moe")))
    broken["lm_head.weight"] = torch.full_like(broken["lm_head.weight"], float("nan"))
    asked = [dataclasses.replace(r, max_tokens=20) for r in requests(7)]

    async def main() -> list[Completion]:
        engine = engine_of(
            build("moe"), store=store, clock=clock(), dtype="float32", max_rows=4, eos_ids=(VOCABULARY,), yield_every=4
        )
        await engine.load(store.publish(0, state(build("moe"))))
        tasks = [asyncio.create_task(engine.generate(r)) for r in asked]
        await asyncio.sleep(0.1)
        await engine.load(store.publish(1, broken), "keep")
        tasks[5].cancel()
        told = await asyncio.gather(*tasks, return_exceptions=True)
        for i, error in enumerate(told):
            assert isinstance(error, asyncio.CancelledError if i == 5 else NonFiniteError)
        assert {e.rollout_id for e in told if isinstance(e, NonFiniteError)} == {"r0"}
        assert await engine.progress() == {}
        await settle()
        await engine.load(store.publish(2, state(build("moe"))))
        return await asyncio.gather(*map(engine.generate, asked))

    assert_same(run(main()), alone(build("moe"), asked, eos_ids=(VOCABULARY,)))


def test_progress_tells_what_can_be_gone_on_with_and_what_has_ended_as_it_is() -> None:
    """Rows, those that have ended and are not due yet, and those that wait with what they had."""
    asked = [dataclasses.replace(r, max_tokens=limit) for r, limit in zip(requests(4), (20, 20, 7, 9), strict=True)]
    whole = alone(build("moe"), asked, eos_ids=(VOCABULARY,))
    asked[3] = dataclasses.replace(asked[3], so_far=cut(whole[3], 5))

    async def main() -> list[Completion]:
        engine = engine_of(
            build("moe"), clock=clock(), dtype="float32", max_rows=3, eos_ids=(VOCABULARY,), yield_every=8
        )
        tasks = [asyncio.create_task(engine.generate(r)) for r in asked]
        await asyncio.sleep(0.01)
        told = await engine.progress()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert {name: len(one) for name, one in told.items()} == {"r0": 8, "r1": 8, "r2": 7, "r3": 5}
        assert {name: one.finish for name, one in told.items() if one.finish != "interrupted"} == {"r2": "length"}
        going_on = [dataclasses.replace(r, so_far=told[r.id]) for r in asked if r.id != "r2"]
        made = await asyncio.gather(*map(engine.generate, going_on))
        return [*made[:2], told["r2"], *made[2:]]

    assert_same(run(main()), whole)


def test_busy_seconds_grow_with_work_only() -> None:
    async def main() -> None:
        engine = engine_of(build("moe"), clock=clock())
        assert engine.busy_s == 0.0
        await engine.generate(requests(1)[0])
        worked = engine.busy_s
        assert worked > 0
        await asyncio.sleep(1.0)
        assert engine.busy_s == worked

    run(main())


def test_log_probs_of_rows_that_join_are_those_of_a_plain_forward() -> None:
    model, asked = build("moe"), requests(14)

    async def main() -> list[Completion]:
        engine = engine_of(build("moe"), clock=clock(), dtype="float32", yield_every=2, max_rows=4)
        return await asyncio.gather(*(late(engine, r, 0.03 * i) for i, r in enumerate(asked)))

    for request, completion in zip(asked, run(main()), strict=True):
        logp, _ = plain_forward(model, request, completion)
        np.testing.assert_allclose(completion.logp, logp.numpy(), atol=1e-5)
