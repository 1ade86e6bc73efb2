from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tether.engines.served.sglang import Sglang
from tether.errors import ConfigError, ModelError
from tether.records import Truncation

from .places import Place, ask, grown, run
from .sglang_double import SglangDouble
from .toy import EOS, serving


@contextmanager
def at(double: SglangDouble, **options: Any) -> Iterator[Place]:
    with serving(double.app()) as url:
        yield Place(Sglang(url=url, dtype="float32", **options))
    assert not double.complaints


@pytest.mark.parametrize("is_incremental", [False, True])
def test_tokens_log_probs_and_versions_are_those_of_the_weights_that_were_published(is_incremental: bool) -> None:
    double = SglangDouble(is_incremental=is_incremental)
    with at(double) as place:

        async def work() -> Any:
            published = place.publish(4)
            assert await place.engine.load(published) == published.fingerprint
            return await asyncio.gather(*(place.engine.generate(ask(f"r{i}", seed=i)) for i in range(40)))

        for made in run(place, work):
            np.testing.assert_allclose(made.logp, place.expected(ask(), made), atol=1e-5)
            assert set(made.version.tolist()) == {4}
            assert made.cached_version is None
            assert (made.finish == "stop") == (made.token_ids[-1] == EOS)
    assert double.calls[:4] == ["/health", "/pause_generation", "/update_weights_from_disk", "/model_info"]


@pytest.mark.parametrize(("way", "mode"), [("keep", "in_place"), ("recompute", "retract")])
@pytest.mark.parametrize("is_incremental", [False, True])
def test_weights_that_change_inside_a_completion_are_told_token_by_token(
    way: Any, mode: str, is_incremental: bool
) -> None:
    double = SglangDouble(is_incremental=is_incremental)
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            double.waits_at = 4
            tasks = [asyncio.create_task(place.engine.generate(ask(f"r{i}", seed=i, max_tokens=60))) for i in range(8)]
            await grown(place, 3)
            await place.engine.load(place.publish(8), way)
            return await asyncio.gather(*tasks)

        mades = [made for made in run(place, work) if len(set(made.version.tolist())) == 2]
        assert mades
        for made in mades:
            np.testing.assert_allclose(made.logp, place.expected(ask(), made), atol=1e-5)
            assert made.version.tolist() == sorted(made.version.tolist())
            assert (made.cached_version is None) == (way == "recompute")
            if made.cached_version is not None:
                assert set(made.cached_version.tolist()) == {0}
    assert double.mode == mode


def test_completions_that_are_told_to_restart_come_back_with_what_they_have_and_go_on() -> None:
    double = SglangDouble()
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=400)))
            await grown(place, 5)
            await place.engine.load(place.publish(8), "restart")
            first = await task
            return first, await place.engine.generate(ask(max_tokens=400, so_far=first))

        first, whole = run(place, work)
        assert first.finish == "interrupted"
        assert set(first.version.tolist()) == {0}
        assert whole.token_ids[: len(first)].tolist() == first.token_ids.tolist()
        assert set(whole.version.tolist()) == {0, 8}
        np.testing.assert_allclose(whole.logp, place.expected(ask(), whole), atol=1e-5)
    seeds = [body["sampling_params"]["sampling_seed"] for body in double.bodies]
    assert len(set(seeds)) == 2, "the rest must not be drawn with the numbers of the beginning"


def test_a_load_that_lets_finish_waits_and_nobody_begins_meanwhile() -> None:
    with at(SglangDouble()) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=400)))
            await grown(place, 2)
            loading = asyncio.create_task(place.engine.load(place.publish(8), "finish"))
            while not place.engine._gate.is_closed:
                await asyncio.sleep(0.001)
            late = asyncio.create_task(place.engine.generate(ask("late")))
            return await task, await loading, await late

        made, _, late = run(place, work)
        assert set(made.version.tolist()) == {0}
        assert set(late.version.tolist()) == {8}


def test_truncated_samples_have_their_kept_ids_and_log_probs_renormalized_over_them() -> None:
    with at(SglangDouble(), top_k=4) as place:
        asked = ask(truncation=Truncation(top_k=4), kept=True, alternatives=3, temperature=0.7)

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            return await place.engine.generate(asked)

        made = run(place, work)
        assert made.kept is not None
        sets = [made.kept.of(t).tolist() for t in range(len(made))]
        assert {len(ids) for ids in sets} == {4}
        np.testing.assert_allclose(made.logp, place.expected(asked, made, sets), atol=1e-5)
        assert made.top_k_ids is not None
        assert made.top_k_ids.shape == (len(made), 3)


def test_a_server_that_reports_log_probs_before_the_temperature_is_found_out() -> None:
    with at(SglangDouble(is_raw=True), temperature=0.5) as place:
        assert place.engine.capabilities.logp == "raw"

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            await place.engine.generate(ask(temperature=0.5))

        with pytest.raises(ModelError, match="before temperature and truncation"):
            run(place, work)
    with at(SglangDouble(), temperature=0.5) as place:
        assert place.engine.capabilities.logp == "processed"
        run(place, lambda: asyncio.sleep(0))


def test_an_older_server_without_spans_is_exact_where_weights_did_not_change_and_refused_where_they_did() -> None:
    with at(SglangDouble(has_spans=False)) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            made = await place.engine.generate(ask())
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=400)))
            await grown(place, 3)
            await place.engine.load(place.publish(8), "keep")
            with pytest.raises(ValueError, match="does not say which made each token"):
                await task
            return made

        assert set(run(place, work).version.tolist()) == {0}


def test_prefixes_are_cached_apart_for_each_version() -> None:
    double = SglangDouble()
    with at(double) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            await place.engine.generate(ask())
            await place.engine.load(place.publish(8))
            await place.engine.generate(ask())

        run(place, work)
    assert len(set(double.salts)) == 2
    assert "" not in double.salts


def test_what_a_url_is_needed_for_is_said() -> None:
    with pytest.raises(ConfigError, match=r"set engine\.url"):
        Place(Sglang(dtype="float32"))
