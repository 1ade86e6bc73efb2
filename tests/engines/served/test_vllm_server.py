"""What can go wrong at a server, and what the engine then is: as it was, or lost, and never in between."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tether.engines.served.vllm_server import VllmServer
from tether.errors import (
    ConfigError,
    DataError,
    EngineLostError,
    NonFiniteError,
    ProcessLostError,
    RolloutError,
    TetherError,
)
from tether.models.loading import load_skeleton
from tether.ports import InFlight
from tether.records import Truncation
from tether.weights.memory import MemoryStore

from .places import MODEL, Place, ask, grown, run
from .toy import babble, break_down, die, hang, hang_up, refuse, serving
from .vllm_double import VllmDouble

GENERATE = "/inference/v1/generate"


@contextmanager
def at(double: VllmDouble, **options: Any) -> Iterator[Place]:
    with serving(double.app()) as url:
        yield Place(VllmServer(url=url, dtype="float32", **{"silence_s": 5.0, "control_s": 5.0, **options}))
    assert not double.complaints


def sampled(double: VllmDouble, *requests: Any, **options: Any) -> Any:
    """What comes of these under version 4."""
    with at(double, **options) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(4))
            return [await place.engine.generate(request) for request in requests or (ask(),)]

        return run(place, work)


@pytest.mark.parametrize("way", ["finish", "keep", "recompute", "restart"])
def test_tokens_are_of_the_weights_that_they_say_in_every_way_of_loading(way: InFlight) -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            double.waits_at = None if way == "finish" else 4
            asked = [ask(f"r{i}", seed=i, max_tokens=80) for i in range(12)]
            tasks = [asyncio.create_task(place.engine.generate(request)) for request in asked]
            await grown(place, 3)
            await place.engine.load(place.publish(8), way)
            assert place.engine.version == 8
            return await asyncio.gather(*tasks)

        mades = run(place, work)
        for made in mades:
            np.testing.assert_allclose(made.logp, place.expected(ask(), made), atol=1e-5)
        versions = {v for made in mades for v in made.version.tolist()}
        assert versions == ({0, 8} if way in ("keep", "recompute") else {0})
        assert ("interrupted" in {made.finish for made in mades}) == (way == "restart")


def test_kept_caches_are_told_and_caches_computed_anew_too() -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=400)))
            await grown(place, 3)
            for version, way in ((8, "keep"), (16, "recompute"), (24, "keep")):
                before = len(double.rows[0].ids)
                while len(double.rows[0].ids) < before + 5:
                    await asyncio.sleep(0.002)
                await place.engine.load(place.publish(version), way)
            return await task

        made = run(place, work)
    pairs = dict(zip(made.version.tolist(), made.cached_version.tolist(), strict=True))
    assert pairs == {0: 0, 8: 0, 16: 16, 24: 16}


def test_progress_tells_no_token_whose_version_is_not_sure() -> None:
    with at(VllmDouble()) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=400)))
            await grown(place, 5)
            await place.engine.load(place.publish(8), "keep")
            await asyncio.sleep(0.1)
            told = (await place.engine.progress())["a"]
            return told, await task

        told, made = run(place, work)
    assert 5 <= len(told) < len(made)
    assert set(told.version.tolist()) == {0}
    assert made.version[: len(told)].tolist() == told.version.tolist()
    assert told.finish == "interrupted"


def test_alternatives_are_the_most_probable_ids_in_order_and_the_sampled_one_does_not_push_one_out() -> None:
    (made,) = sampled(VllmDouble(), ask(alternatives=4))
    assert made.top_k_logp.shape == (len(made), 4)
    assert (np.diff(made.top_k_logp) <= 0).all()


def test_kept_ids_come_with_a_truncation_and_are_refused_where_the_server_does_not_tell_them() -> None:
    asked = ask(truncation=Truncation(top_k=5), kept=True)
    (made,) = sampled(VllmDouble(), asked, top_k=5)
    assert np.diff(made.kept.starts).tolist() == [5] * len(made)
    silent = VllmDouble()
    silent.config["model_config"]["return_sampling_mask"] = False
    with pytest.raises(TetherError, match="cannot tell"):
        sampled(silent, asked, top_k=5)


def test_answers_come_in_order_and_are_no_part_of_progress() -> None:
    with at(VllmDouble(), max_rows=3) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.answer([ask(f"r{i}", seed=i, max_tokens=i + 1) for i in range(8)]))
            await asyncio.sleep(0.01)
            assert not await place.engine.progress()
            return await task

        assert all(len(made) <= i + 1 for i, made in enumerate(run(place, work)))


def test_hundreds_of_completions_stream_at_once() -> None:
    with at(VllmDouble()) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            return await asyncio.gather(
                *(place.engine.generate(ask(f"r{i}", seed=i, max_tokens=8)) for i in range(200))
            )

        assert len(run(place, work)) == 200
        assert place.engine.busy_s > 0


def test_a_caller_that_is_cancelled_ends_its_completion_at_the_server() -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> None:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=450)))
            await grown(place, 3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not await place.engine.progress()
            while double.rows or not double.dropped:
                await asyncio.sleep(0.002)

        run(place, work)


def doctored(change: Any) -> VllmDouble:
    """A double whose last messages of an answer are changed."""

    def twist(message: dict[str, Any]) -> dict[str, Any]:
        if message["choices"][0]["finish_reason"]:
            change(message["choices"][0])
        return message

    double = VllmDouble()
    double.twist = twist
    return double


def set_logp(value: Any) -> Any:
    return lambda choice: choice["logprobs"]["content"][0].update(logprob=value)


@pytest.mark.parametrize("value", [math.nan, None, -9999.0, -math.inf])
def test_a_log_prob_that_is_no_number_is_an_error_that_names_the_rollout(value: Any) -> None:
    with pytest.raises(NonFiniteError, match=r"request 'r7' got .* for token") as caught:
        sampled(doctored(set_logp(value)), ask("r7"))
    assert caught.value.rollout_id == "r7"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda choice: choice.update(
                token_ids=[99], logprobs={"content": [{"token_id": 99, "logprob": -1.0, "top_logprobs": []}]}
            ),
            r"ids must lie in 0 \.\. 23",
        ),
        (lambda choice: choice.update(logprobs={"content": []}), "log-probs are of ids"),
        (lambda choice: choice["logprobs"]["content"][0].update(token_id=-1), "log-probs are of ids"),
        (lambda choice: choice.update(finish_reason="stop"), "stops with an end-of-sequence id"),
        (lambda choice: choice.update(finish_reason="error"), "ends with stop, length or abort"),
        (lambda choice: choice["weight_versions"][0].update(version="somebody.9"), "labels that this engine gave"),
        (lambda choice: choice["weight_versions"][0].update(start=1), "spans of versions follow one another"),
        (lambda choice: choice["weight_versions"].pop(), "versions rise over all"),
        (lambda choice: choice.pop("token_ids"), "must answer as its protocol says"),
        (set_logp(0.5), "a log-prob is at most 0"),
    ],
)
def test_an_answer_that_cannot_be_what_was_asked_for_is_an_error_that_names_the_request(change: Any, told: str) -> None:
    with pytest.raises((DataError, RolloutError), match=told) as caught:
        sampled(doctored(change), ask("r7", max_tokens=3, seed=1))
    assert "r7" in str(caught.value)


def test_a_prompt_that_the_server_tokenized_anew_is_an_error() -> None:
    double = VllmDouble()
    double.twist = lambda message: message | {"prompt_token_ids": [0, 5, 6, 7]}
    with pytest.raises(DataError, match="must take the ids that it is sent"):
        sampled(double)


def test_an_answer_that_breaks_off_is_asked_for_once_more_and_comes_once() -> None:
    for fault in (hang_up, break_down):
        double = VllmDouble()
        double.faults[GENERATE] = [fault]
        (made,) = sampled(double)
        assert len(made) <= 30
        assert double.calls.count(GENERATE) == 2
        assert len({body["request_id"] for body in double.bodies}) == len(double.bodies)


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        ([break_down, break_down], "answered 500: .*out of memory"),
        ([refuse], "answered 400: .*not now"),
        ([babble, babble], "must answer with JSON"),
    ],
)
def test_a_server_that_is_well_and_answers_badly_is_an_error_with_its_words(faults: Any, told: str) -> None:
    double = VllmDouble()
    double.faults[GENERATE] = faults
    with pytest.raises(RolloutError, match=f"rollout a could not be sampled: .*{GENERATE}.*{told}"):
        sampled(double)


def test_a_server_whose_core_dies_in_the_middle_of_an_answer_is_lost_and_not_the_rollout() -> None:
    double = VllmDouble()
    double.faults[GENERATE] = [die]
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            double.faults["/health"] = [break_down] * 9
            with pytest.raises(EngineLostError, match="EngineCore encountered an issue"):
                await place.engine.generate(ask())
            return place.engine.version

        assert run(place, work) == -1


def test_a_server_that_says_nothing_is_lost_and_so_is_all_that_is_under_way() -> None:
    double = VllmDouble()
    double.faults[GENERATE] = [hang, hang]
    with at(double, silence_s=0.3) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            asked = [asyncio.create_task(place.engine.generate(ask(name))) for name in "ab"]
            ended = await asyncio.gather(*asked, return_exceptions=True)
            assert place.engine.version == -1
            with pytest.raises(EngineLostError, match="holds no weights yet"):
                await place.engine.generate(ask())
            await place.engine.load(place.publish(8))
            return ended, await place.engine.generate(ask())

        ended, made = run(place, work)
    assert all(isinstance(error, EngineLostError) for error in ended)
    assert "said nothing for 0.3 seconds" in str(ended[0])
    assert set(made.version.tolist()) == {8}


def test_a_server_that_is_killed_in_the_middle_of_streams_is_lost_within_seconds() -> None:
    double = VllmDouble()

    with serving(double.app()) as url:
        place = Place(VllmServer(url=url, dtype="float32", start_s=0.5, control_s=5.0))
        loop = asyncio.new_event_loop()
        loop.run_until_complete(place.engine.load(place.publish(0)))
        asked = [loop.create_task(place.engine.generate(ask(f"r{i}", seed=i, max_tokens=450))) for i in range(5)]
        loop.run_until_complete(grown(place, 2))
    began = time.monotonic()
    ended = loop.run_until_complete(asyncio.gather(*asked, return_exceptions=True))
    assert [type(error) for error in ended] == [EngineLostError] * 5
    assert time.monotonic() - began < 10
    with pytest.raises(ProcessLostError, match=r"did not answer within engine\.start_s"):
        loop.run_until_complete(place.engine.load(place.publish(8)))
    loop.run_until_complete(place.engine.close())
    loop.close()


@pytest.mark.parametrize("where", ["/collective_rpc", "/reset_prefix_cache", "/weight_info", "/resume"])
def test_a_load_that_fails_in_the_middle_leaves_no_version_and_the_next_takes_all_anew(where: str) -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=400)))
            await grown(place, 3)
            double.faults[where] = [break_down]
            published = place.publish(8)
            with pytest.raises(EngineLostError, match="in the middle of taking version 8"):
                await place.engine.load(published, "recompute")
            assert place.engine.version == -1
            with pytest.raises(EngineLostError):
                await task
            assert await place.engine.load(published, "recompute") == published.fingerprint
            return await place.engine.generate(ask("b"))

        made = run(place, work)
        np.testing.assert_allclose(made.logp, place.expected(ask(), made), atol=1e-5)
        assert set(made.version.tolist()) == {8}


def test_a_load_that_is_refused_before_it_began_leaves_everything_as_it_was() -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=60)))
            await grown(place, 3)
            double.faults["/pause"] = [refuse]
            published = place.publish(8)
            with pytest.raises(TetherError, match="answered 400"):
                await place.engine.load(published, "keep")
            assert place.engine.version == 0
            made = await task
            await place.engine.load(published)
            return made

        assert set(run(place, work).version.tolist()) == {0}


def test_a_pause_that_never_answers_loses_the_engine_at_its_deadline() -> None:
    double = VllmDouble()
    with at(double, control_s=0.4) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            double.faults["/pause"] = [hang]
            with pytest.raises(
                EngineLostError, match=r"did not hold still for version 8: .*said nothing for 0\.4 seconds"
            ):
                await place.engine.load(place.publish(8))
            assert place.engine.version == -1

        run(place, work)


def test_a_server_that_is_lost_again_and_again_stops_the_run() -> None:
    double = VllmDouble()
    with at(double, restarts=2) as place:

        async def work() -> None:
            published = place.publish(0)
            double.faults["/collective_rpc"] = [break_down] * 9
            for _ in range(3):
                with pytest.raises(EngineLostError):
                    await place.engine.load(published)
            with pytest.raises(ProcessLostError, match="lost 3 times"):
                await place.engine.load(published)

        run(place, work)


def test_publications_out_of_turn_are_refused_before_the_server_hears_of_them() -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> None:
            first, _, third = place.publish(0), place.publish(8), place.publish(16)
            await place.engine.load(first)
            calls = len(double.calls)
            with pytest.raises(ValueError, match="a version was missed"):
                await place.engine.load(third)
            assert len(double.calls) == calls
            assert place.engine.version == 0

        run(place, work)


def test_a_load_that_is_cancelled_in_the_middle_loses_the_engine() -> None:
    double = VllmDouble()
    with at(double) as place:

        async def work() -> None:
            await place.engine.load(place.publish(0))
            double.faults["/collective_rpc"] = [hang]
            task = asyncio.create_task(place.engine.load(place.publish(8)))
            while "/collective_rpc" not in double.calls[4:]:
                await asyncio.sleep(0.002)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert place.engine.version == -1

        run(place, work)


def test_a_running_server_with_raw_log_probs_is_told_as_one() -> None:
    double = VllmDouble()
    double.config["model_config"]["logprobs_mode"] = "raw_logprobs"
    with at(double) as place:
        assert place.engine.capabilities.logp == "raw"
        run(place, lambda: asyncio.sleep(0))
    with pytest.raises(TetherError, match="before temperature and truncation"):
        sampled(double, ask(temperature=0.5))


@pytest.mark.parametrize(
    ("section", "value", "told"),
    [
        ("model_config", {"logprobs_mode": "raw_logits", "dtype": "torch.float32"}, "must report log-probs"),
        (
            "model_config",
            {"logprobs_mode": "processed_logprobs", "dtype": "torch.bfloat16"},
            "computes in torch.bfloat16",
        ),
        ("device_config", {"device_type": "cpu"}, "forgets parts of the weights"),
    ],
)
def test_a_running_server_that_cannot_be_used_is_refused_when_it_is_looked_at(
    section: str, value: Any, told: str
) -> None:
    double = VllmDouble()
    double.config[section] = value
    with pytest.raises(ConfigError, match=told), at(double):
        pass


def test_a_server_that_is_not_there_is_refused_with_what_to_start() -> None:
    with pytest.raises(ConfigError, match=r"cannot be asked.*--enable-scale-out"):
        Place(VllmServer(url="http://127.0.0.1:9", dtype="float32"))


def test_weights_for_a_server_elsewhere_need_a_folder_that_both_see() -> None:
    options = VllmServer(url="http://gpu-7:8000", dtype="float32")
    with pytest.raises(ConfigError, match=r"set engine\.folder"):
        options.folders(MemoryStore("float32"), load_skeleton(MODEL))


def test_a_server_that_was_started_anew_is_asked_at_its_new_address() -> None:
    first, second = VllmDouble(), VllmDouble()
    with serving(first.app()) as old, serving(second.app()) as new:
        place = Place(VllmServer(url=old, dtype="float32"))
        engine, now = place.engine, [old]

        class Moved:
            who = "a server that moves"

            @property
            def url(self) -> str:
                return now[0]

            async def ready(self, is_alive: Any) -> None:
                assert await is_alive()

            def end(self) -> None:
                now[0] = new

            def gone(self) -> None:
                pass

        engine._server, engine._client._where = Moved(), lambda: now[0]

        async def work() -> Any:
            await engine.load(place.publish(0))
            first.faults["/collective_rpc"] = [break_down]
            published = place.publish(8)
            with pytest.raises(EngineLostError):
                await engine.load(published)
            await engine.load(published)
            return await engine.generate(ask())

        assert set(run(place, work).version.tolist()) == {8}
    assert GENERATE in second.calls
    assert GENERATE not in first.calls


def test_the_start_of_a_server_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with at(VllmDouble()) as place:
        told = []

        async def starts_slowly(is_alive: Any) -> None:
            told.append(place.engine.busy_s)
            await asyncio.sleep(0.01)
            told.append(place.engine.busy_s)

        monkeypatch.setattr(place.engine._server, "ready", starts_slowly)
        run(place, lambda: place.engine.load(place.publish(0)))
        assert told[0] == told[1] < place.engine.busy_s


def test_a_server_on_processors_is_told_to_read_prompts_whole_for_its_generators_cannot_be_put_back() -> None:
    command = VllmServer(max_rows=16)._command(load_skeleton(MODEL), 1, on_cpu=True)
    assert {"--no-enable-chunked-prefill", "--max-num-batched-tokens=8192"} <= set(command)
    assert "--no-enable-chunked-prefill" not in VllmServer()._command(load_skeleton(MODEL), 1, on_cpu=False)
