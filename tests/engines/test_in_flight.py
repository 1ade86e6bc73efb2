"""Weights that change while completions are under way, and completions that outlive the process they began in."""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.tiny import (
    VOCABULARY,
    NumberedStore,
    assert_equal_bits,
    build,
    engine_of,
    plain_forward,
    requests,
    state,
    through_a_file,
    truncated,
)
from tether.engines.torch import TorchEngine
from tether.errors import DataError, ModelError
from tether.placement.inline import Inline, InlineClock
from tether.placement.real_time import RealClock
from tether.ports import GenerationRequest, InFlight, Publication
from tether.records import Completion

POLICIES: tuple[InFlight, ...] = ("finish", "keep", "recompute", "restart")
BLOCK_S = 0.08
"""Four tokens of 0.02 seconds."""


class World:
    """A store with three versions, and engines of the same options around it."""

    def __init__(self, kind: str = "moe", max_rows: int = 5, **options: Any) -> None:
        self.models = [build(kind, seed=seed) for seed in range(3)]
        self.model = build(kind, seed=3)
        store = NumberedStore("float32")
        self.publications = [store.publish(8 * i, state(model)) for i, model in enumerate(self.models)]
        self.options = {"dtype": "float32", "yield_every": 4, "max_rows": max_rows, "store": store, **options}

    async def engine(self, clock: InlineClock | RealClock, number: int = 0) -> TorchEngine:
        engine = engine_of(self.model, clock=clock, **self.options)
        await engine.load(self.publications[number])
        return engine


def endless(count: int, limits: Sequence[int] = (15,), *, routing: bool = False) -> list[GenerationRequest]:
    return [
        dataclasses.replace(r, max_tokens=limits[i % len(limits)], routing=routing)
        for i, r in enumerate(requests(count))
    ]


def change_at(
    world: World, asked: list[GenerationRequest], policy: InFlight, at_s: float
) -> tuple[list[Completion], dict[str, float]]:
    """All asked at once; new weights come at a moment. What came of it, and when (on the clock, in tokens)."""
    moments: dict[str, float] = {}

    async def one(engine: TorchEngine, clock: InlineClock, request: GenerationRequest) -> Completion:
        made = await engine.generate(request)
        moments[request.id] = round(clock.now() / 0.02, 6)
        return made

    async def main() -> list[Completion]:
        clock = Inline().clock()
        engine = await world.engine(clock)
        running = asyncio.gather(*(one(engine, clock, r) for r in asked))
        await clock.until(at_s)
        assert await engine.load(world.publications[1], policy) == world.publications[1].fingerprint
        moments["load"] = round(clock.now() / 0.02, 6)
        assert engine.version == 8
        return await running

    return Inline().run(main()), moments


def logp_by(model: Any, request: GenerationRequest, completion: Completion) -> np.ndarray:
    logp: np.ndarray = plain_forward(model, request, completion)[0].numpy()
    return logp


@pytest.mark.parametrize("kind", ["moe", "sliding"])
def test_keep_goes_on_under_new_weights_over_old_keys(kind: str) -> None:
    world, asked = World(kind, eos_ids=(VOCABULARY,)), endless(5)
    done, moments = change_at(world, asked, "keep", 0.1)  # in the second block
    assert moments == {**{r.id: 15 for r in asked}, "load": 5}
    for request, made in zip(asked, done, strict=True):
        assert made.version.tolist() == [0] * 8 + [8] * 7
        assert made.cached_version is not None
        assert made.cached_version.tolist() == [0] * 15
        np.testing.assert_allclose(made.logp[:8], logp_by(world.models[0], request, made)[:8], atol=1e-4)
        assert np.abs(made.logp[8:] - logp_by(world.models[1], request, made)[8:]).max() > 1e-2


@pytest.mark.parametrize("kind", ["moe", "sliding", "gpt2"])
def test_recompute_goes_on_as_if_the_new_weights_had_read_everything(kind: str) -> None:
    world, asked = World(kind, eos_ids=(VOCABULARY,)), endless(5)
    done, moments = change_at(world, asked, "recompute", 0.1)
    assert moments == {**{r.id: 16 for r in asked}, "load": 5}  # a pass more
    for request, made in zip(asked, done, strict=True):
        assert made.version.tolist() == [0] * 8 + [8] * 7
        assert made.cached_version is None
        np.testing.assert_allclose(made.logp[:8], logp_by(world.models[0], request, made)[:8], atol=1e-4)
        np.testing.assert_allclose(made.logp[8:], logp_by(world.models[1], request, made)[8:], atol=1e-4)


def test_rows_that_join_after_a_change_have_new_keys_and_those_before_old_ones() -> None:
    world, asked = World(max_rows=5, eos_ids=(VOCABULARY,)), endless(8, (8, 15))
    done, _ = change_at(world, asked, "keep", 0.1)
    whole = {8: [0] * 8, 15: [0] * 8 + [8] * 7}
    assert [one.version.tolist() for one in done[:5]] == [whole[r.max_tokens] for r in asked[:5]]
    assert [one.cached_version is None for one in done] == [r.max_tokens == 8 for r in asked[:5]] + [True] * 3
    assert {v for one in done[5:] for v in one.version.tolist()} == {8}


def test_finish_lets_rows_end_and_nobody_join() -> None:
    world, asked = World(max_rows=5, eos_ids=(VOCABULARY,)), endless(8, (8, 15))
    done, moments = change_at(world, asked, "finish", 0.1)
    assert moments["load"] == 15
    assert [set(one.version.tolist()) for one in done] == [{0}] * 5 + [{8}] * 3
    assert all(one.cached_version is None for one in done)
    for request, made in zip(asked[5:], done[5:], strict=True):
        np.testing.assert_allclose(made.logp, logp_by(world.models[1], request, made), atol=1e-4)


def test_restart_sends_rows_back_and_those_that_wait_go_on_waiting() -> None:
    world, asked = World(max_rows=5, eos_ids=(VOCABULARY,)), endless(8, (8, 15))
    done, moments = change_at(world, asked, "restart", 0.1)
    assert [one.finish for one in done] == ["length", "interrupted", "length", "interrupted"] + ["length"] * 4
    assert [len(one) for one in done] == [8, 8, 8, 8, 8, 15, 8, 15]
    assert [moments[r.id] for r in asked[:5]] == [8] * 5
    assert [set(one.version.tolist()) for one in done] == [{0}] * 5 + [{8}] * 3


@pytest.mark.parametrize("policy", ["keep", "recompute", "restart"])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_the_number_of_tokens_between_two_changes_is_exact(policy: InFlight, blocks: int) -> None:
    world, asked = World(eos_ids=(VOCABULARY,)), endless(3, (24,))
    passes = policy == "recompute"

    async def main() -> list[Completion]:
        clock = Inline().clock()
        engine = await world.engine(clock)
        running = [asyncio.create_task(engine.generate(r)) for r in asked]
        await clock.until(0.01)
        await engine.load(world.publications[1], policy)
        if policy == "restart":
            begun = await asyncio.gather(*running)
            again = [dataclasses.replace(r, so_far=b) for r, b in zip(asked, begun, strict=True)]
            running = [asyncio.create_task(engine.generate(r)) for r in again]
        await clock.until(BLOCK_S * (1 + blocks) + 0.02 * passes - 0.01)
        await engine.load(world.publications[2], "keep")
        return await asyncio.gather(*running)

    for made in Inline().run(main()):
        assert made.version.tolist() == [0] * 4 + [8] * 4 * blocks + [16] * (20 - 4 * blocks)
        oldest = 0 if policy == "keep" else 8
        assert made.cached_version is not None
        assert made.cached_version.tolist() == [0] * 4 + [oldest] * (20)


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_the_route_of_a_token_is_that_of_the_weights_that_read_it_first(policy: InFlight) -> None:
    world, asked = World(eos_ids=(VOCABULARY,)), endless(5, routing=True)
    done, _ = change_at(world, asked, policy, 0.1)
    undisturbed, _ = change_at(World(eos_ids=(VOCABULARY,)), asked, "keep", 10.0)
    for request, made, before in zip(asked, done, undisturbed, strict=True):
        assert made.experts is not None
        assert before.experts is not None
        read = len(request.prompt_ids) + 7  # the eighth token is read by the new weights
        assert made.experts[:read].tolist() == before.experts[:read].tolist()
        assert (made.experts[:-1] >= 0).all()
        assert (made.experts[-1] == -1).all()
        assert made.experts[read:-1].tolist() != before.experts[read:-1].tolist()


def test_a_publication_out_of_turn_is_refused_and_the_one_held_may_come_again() -> None:
    world = World()

    async def main() -> None:
        engine = await world.engine(Inline().clock())
        with pytest.raises(ModelError, match=r"number 0 \(version 0\) .* number 2 \(version 16\): a version was miss"):
            await engine.load(world.publications[2])
        assert engine.version == 0
        assert await engine.load(world.publications[0]) == world.publications[0].fingerprint
        await engine.load(world.publications[1])
        with pytest.raises(ModelError, match=r"holds number 1 \(version 8\) and was given number 0 .*: it is older"):
            await engine.load(world.publications[0])
        with pytest.raises(ModelError, match="two publications have one number"):
            await engine.load(dataclasses.replace(world.publications[1], fingerprint="0" * 64))
        fresh = engine_of(build("moe"), **world.options)
        await fresh.load(world.publications[2])

    Inline().run(main())


Change = tuple[float, Publication, InFlight]


@dataclasses.dataclass
class Left:
    """What a run that was stopped left behind."""

    now_s: float
    done: dict[str, Completion]
    loaded: list[Publication]
    flight: dict[str, Any]


def drive(
    world: World,
    asked: list[tuple[float, GenerationRequest]],
    changes: list[Change],
    *,
    left: Left | None = None,
    stop_s: float | None = None,
) -> Left:
    """Ask and change at given moments until all is done, or until a moment; go on from what was left."""
    done = {} if left is None else dict(left.done)
    loaded = [world.publications[0]] if left is None else list(left.loaded)

    async def one(engine: TorchEngine, clock: InlineClock, at_s: float, request: GenerationRequest) -> None:
        if at_s > clock.now():
            await clock.until(at_s)
        made = await engine.generate(request)
        while made.finish == "interrupted":
            made = await engine.generate(dataclasses.replace(request, so_far=made))
        done[request.id] = made

    async def change(engine: TorchEngine, clock: InlineClock, what: Change) -> None:
        await clock.until(what[0])
        await engine.load(what[1], what[2])
        loaded.append(what[1])

    async def main() -> Left:
        clock = Inline().clock()
        engine = await world.engine(clock, loaded[-1].number)
        if left is not None:
            engine.restore(left.flight)
        works = [one(engine, clock, at, r) for at, r in asked if r.id not in done]
        works += [change(engine, clock, what) for what in changes if what[1] not in loaded]
        tasks = [asyncio.create_task(work) for work in works]
        if stop_s is None:
            await asyncio.gather(*tasks)
            return Left(clock.now(), done, loaded, {})
        await clock.until(stop_s)
        await clock.quiet()
        stopped = Left(clock.now(), dict(done), list(loaded), through_a_file(dict(engine.in_flight())))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return stopped

    return Inline().run(main(), start_s=0.0 if left is None else left.now_s)  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", ["moe", "sliding"])
def test_a_run_killed_at_any_block_ends_with_the_same_bits(kind: str, policy: InFlight) -> None:
    """With rows, with requests that wait, with a change that is to come or is waited for; twice in a row."""
    world = World(kind)
    given = endless(9, (15, 6, 24), routing=kind == "moe")
    # asyncio wakes timers of one moment in any order: two that come later come apart
    asked = [
        (0.01 * (i + 6) if i > 6 else 0.0, dataclasses.replace(r, alternatives=i % 3))
        for i, r in enumerate(truncated(given))
    ]
    changes: list[Change] = [(0.1, world.publications[1], policy), (0.5, world.publications[2], policy)]
    whole = drive(world, asked, changes)
    assert {v for one in whole.done.values() for v in one.version.tolist()} >= {0, 8}
    stops = [0.0, *(BLOCK_S * i - 0.01 for i in (1, 2, 3, 4, 7)), BLOCK_S * 2, BLOCK_S * 3]
    for stop_s in stops:
        left = drive(world, asked, changes, stop_s=stop_s)
        again = drive(world, asked, changes, left=left, stop_s=stop_s + BLOCK_S)
        end = drive(world, asked, changes, left=again)
        assert end.done.keys() == whole.done.keys()
        assert_equal_bits([end.done[r.id] for _, r in asked], [whole.done[r.id] for _, r in asked])
        assert end.now_s == max(whole.now_s, again.now_s)


def test_a_restored_engine_waits_for_all_and_refuses_another_request_under_a_known_id() -> None:
    world, asked = World(max_rows=2), endless(3)
    left = drive(world, [(0.0, r) for r in asked], [], stop_s=0.01)

    async def main() -> None:
        clock = Inline().clock()
        engine = await world.engine(clock)
        engine.restore(left.flight)
        first = [asyncio.create_task(engine.generate(r)) for r in asked[:2]]
        await asyncio.sleep(10.0)
        assert not any(task.done() for task in first)
        with pytest.raises(DataError, match="comes with another prompt, seed or limit"):
            await engine.generate(dataclasses.replace(asked[2], seed=1))
        await engine.generate(asked[2])
        await asyncio.gather(*first)

    Inline().run(main())


def test_a_flight_of_an_idle_engine_can_be_restored() -> None:
    world = World()

    async def main() -> None:
        engine = await world.engine(Inline().clock())
        fresh = await world.engine(Inline().clock())
        fresh.restore(through_a_file(dict(engine.in_flight())))
        assert len(await fresh.generate(endless(1)[0])) > 0
        assert await fresh.progress() == {}

    Inline().run(main())


def test_a_load_that_waits_for_rows_to_end_may_be_cancelled() -> None:
    world, asked = World(max_rows=2, eos_ids=(VOCABULARY,)), endless(3)

    async def main() -> None:
        clock = Inline().clock()
        engine = await world.engine(clock)
        running = asyncio.gather(*map(engine.generate, asked))
        await clock.until(0.01)
        load = asyncio.create_task(engine.load(world.publications[1], "finish"))
        await clock.until(0.1)
        load.cancel()
        assert {v for one in await running for v in one.version.tolist()} == {0}
        assert torch.is_tensor(engine._loaded.model.lm_head.weight)

    Inline().run(main())


@pytest.mark.parametrize("policy", POLICIES)
def test_new_weights_may_come_at_any_turn_of_a_loop_in_real_time(policy: InFlight) -> None:
    """Under virtual time they come between two moments only; in a process of its own, whenever a call arrives."""

    async def main(turns: int) -> list[Completion]:
        engine = await world.engine(RealClock())
        asked = [asyncio.create_task(engine.generate(r)) for r in endless(4)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.load(world.publications[1], policy)
        async with asyncio.timeout(20):
            return await asyncio.gather(*asked)

    world = World()
    for turns in range(12):
        assert len(asyncio.run(main(turns))) == 4
