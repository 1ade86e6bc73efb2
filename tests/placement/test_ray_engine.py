"""An engine in a process of its own: completions stream, control comes in between, death and stalls are survived."""

import asyncio
import os
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

pytest.importorskip("ray")

from tether.errors import EngineLostError, NonFiniteError, ProcessLostError, ResumeError
from tether.placement.deadlines import Deadlines
from tether.placement.parts import Notices
from tether.placement.ray_engine import RayEngine
from tether.placement.ray_host import EnginePart
from tether.placement.ray_process import Process
from tether.placement.restarts import Restarts
from tether.ports import GenerationRequest, Publication

from .parts_on_ray import is_alive, process
from .small_engine import makers


def request(id: str, tokens: int = 32) -> GenerationRequest:
    return GenerationRequest(id=id, prompt_ids=(1,), seed=0, max_tokens=tokens, temperature=1.0)


def publication(version: int) -> Publication:
    return Publication(version=version, fingerprint=f"of {version}", num_bytes=1)


def start(role: str = "engine-0", block_s: float = 0.02) -> Process:
    return process(role, partial(EnginePart, makers(block_s), None, "cpu"))


@contextmanager
def opened(*, block_s: float = 0.02, most: int = 3, **deadlines: float) -> Iterator[tuple[RayEngine, list]]:
    told: list = []
    notices = Notices()
    notices.listen(told.append, told.append)
    engine = RayEngine(partial(start, block_s=block_s), Deadlines(**deadlines), Restarts(most, notices), notices)
    engine.started()
    try:
        yield engine, told
    finally:
        engine.end()


@pytest.fixture(scope="module")
def engine(ray_here):
    with opened() as (one, _):
        asyncio.run(one.load(publication(0)))
        yield one


class Calls:
    """Counts what an engine asks of its process."""

    def __init__(self, engine: RayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: Counter[str] = Counter()
        for name in ("call", "post"):
            monkeypatch.setattr(engine._process, name, self.counted(getattr(engine._process, name)))

    def counted(self, call):
        def asked(name, *args, **options):
            self.names[name] += 1
            return call(name, *args, **options)

        return asked


def test_completions_come_as_they_are_done_and_not_all_together(engine):
    async def main():
        finished = []

        async def one(tokens):
            await engine.generate(request(f"r{tokens}", tokens))
            finished.append(tokens)

        await asyncio.gather(*(one(tokens) for tokens in (400, 8, 160)))
        return finished

    assert asyncio.run(main()) == [8, 160, 400]
    assert engine.busy_s > 0.9


def test_a_server_that_is_lost_behind_an_engine_is_told_once_and_the_engine_goes_on_after_a_load(ray_here):
    with opened() as (engine, told):

        async def main():
            await engine.load(publication(0))
            asked = (engine.generate(request(f"server{n}")) for n in range(3))
            lost = await asyncio.gather(*asked, return_exceptions=True)
            with pytest.raises(EngineLostError, match="holds no weights yet"):
                await engine.generate(request("r"))
            await engine.load(publication(1))
            return lost, await engine.generate(request("r"))

        lost, completion = asyncio.run(main())
    assert [type(error) for error in lost] == [EngineLostError] * 3
    assert [text for text in told if isinstance(text, str)] == ["engine-0: the server at 127.0.0.1 was lost"]
    assert set(completion.token_ids.tolist()) == {1}


def test_what_is_asked_at_once_travels_at_once_and_so_does_what_is_done(engine, monkeypatch):
    calls = Calls(engine, monkeypatch)

    async def main():
        return await asyncio.gather(*(engine.generate(request(f"r{n}")) for n in range(200)))

    assert [len(completion) for completion in asyncio.run(main())] == [32] * 200
    assert calls.names["submit"] == 1
    assert calls.names["collect"] <= 3


def test_arrays_of_a_completion_are_the_callers_own(engine):
    completion = asyncio.run(engine.generate(request("r", 8)))
    completion.logp[0] = 1.0  # memory that Ray shares is for reading, and held as long as an array of it


def test_weights_change_inside_a_completion_that_is_under_way(engine):
    async def main():
        under_way = asyncio.create_task(engine.generate(request("r", 400)))
        await asyncio.sleep(0.3)
        assert await engine.load(publication(8), "keep") == "of 8"
        assert (engine.version, under_way.done()) == (8, False)
        return await under_way

    versions = asyncio.run(main()).version.tolist()
    assert set(versions) == {0, 8}
    assert versions == sorted(versions)


def test_interrupted_completions_come_back_and_go_on(engine):
    async def main():
        under_way = asyncio.create_task(engine.generate(request("r", 800)))
        await asyncio.sleep(0.3)
        sampled = await engine.progress()
        await engine.load(publication(16), "restart")
        return sampled["r"], await under_way

    before, after = asyncio.run(main())
    assert 0 < len(before) <= len(after) < 800
    assert (before.finish, after.finish) == ("interrupted", "interrupted")


def test_a_look_at_the_engine_leaves_what_is_under_way_alone(engine):
    async def main():
        under_way = asyncio.create_task(engine.generate(request("r", 160)))
        await asyncio.sleep(0.1)
        [answered] = await engine.answer([request("probe", 4)])
        return answered, under_way.done(), await under_way

    answered, was_done, completion = asyncio.run(main())
    assert (len(answered), was_done, len(completion)) == (4, False, 160)


def test_an_error_comes_to_its_own_caller_with_its_rollout(engine):
    async def main():
        return await asyncio.gather(
            engine.generate(request("r")), engine.generate(request("nan/3")), return_exceptions=True
        )

    fine, error = asyncio.run(main())
    assert len(fine) == 32
    assert type(error) is NonFiniteError
    assert error.rollout_id == "nan/3"


def test_a_caller_that_is_cancelled_ends_its_completion(engine):
    async def main():
        hanging = asyncio.create_task(engine.generate(request("hang")))
        under_way = asyncio.create_task(engine.generate(request("long", 10**6)))
        await asyncio.sleep(0.2)
        hanging.cancel()
        under_way.cancel()
        await asyncio.sleep(0.2)
        return await engine.progress()

    assert asyncio.run(main()) == {}
    assert engine._line._open == {}
    assert engine._line._collecting.done()  # nobody waits for an engine that has nothing to do


def test_control_does_not_wait_for_generation_but_for_a_block_of_it(engine):
    async def main():
        under_way = [asyncio.create_task(engine.generate(request(f"r{n}", 4000))) for n in range(512)]
        await asyncio.sleep(0.3)
        waits = []
        for version in range(24, 44):
            began = time.perf_counter()
            await engine.load(publication(version), "keep")
            waits.append(time.perf_counter() - began)
        assert not any(task.done() for task in under_way)
        for task in under_way:
            task.cancel()
        return waits

    waits = asyncio.run(main())
    assert statistics.median(waits) < 0.5  # a block takes 0.02, all of them 10


def test_what_another_process_cannot_tell_is_not_pretended(engine):
    assert engine.in_flight() is None
    with pytest.raises(ResumeError, match=r"resume with placement.kind=inline"):
        engine.restore({})


def test_everyone_who_asked_an_engine_that_dies_is_told_and_asks_the_new_one(ray_here):
    async def main():
        await engine.load(publication(0))
        asked = [asyncio.create_task(engine.generate(request(f"r{n}", 4000))) for n in range(20)]
        await asyncio.sleep(0.2)
        busy_s = engine.busy_s
        os.kill(engine._process.facts["pid"], signal.SIGKILL)
        lost = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(error) for error in lost} == {EngineLostError}
        assert engine.version == -1
        with pytest.raises(EngineLostError, match="holds no weights yet"):
            await engine.generate(request("r"))
        await engine.load(publication(8))
        assert engine.busy_s >= busy_s
        return await engine.generate(request("r"))

    with opened() as (engine, told):
        assert asyncio.run(main()).version.tolist() == [8] * 32
    warnings = [text for text in told if isinstance(text, str)]
    assert len(warnings) == 1
    assert "it is started anew (1 of 3)" in warnings[0]
    assert len(told) == 3  # and both processes


def test_an_engine_that_gives_nothing_while_it_has_work_is_ended_and_started_anew(ray_here):
    async def main():
        await engine.load(publication(0))
        pid = engine._process.facts["pid"]
        with pytest.raises(EngineLostError, match=r"gave nothing for .*generate_s = 1 seconds while 1 pieces"):
            await engine.generate(request("hang"))
        return pid

    with opened(generate_s=1.0) as (engine, told):
        assert not is_alive(asyncio.run(main()))
        assert any("is started anew (1 of 3)" in text for text in told if isinstance(text, str))


def test_restarts_are_bounded(ray_here):
    async def main():
        await engine.load(publication(0))
        await asyncio.gather(*(engine.generate(request(id)) for id in ("die", "r")))

    with opened(most=0) as (engine, _), pytest.raises(ProcessLostError, match=r"the most that placement.max_restarts"):
        asyncio.run(main())
