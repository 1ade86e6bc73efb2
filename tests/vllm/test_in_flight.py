"""Weights that change while completions are under way: every token has the version that made it, exactly."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tether.errors import ResumeError

from .world import TOKEN_S, Versions, change_at, clock, opened, requests, run


def test_keep_goes_on_over_old_keys_and_says_so(endless):
    versions, asked = Versions(), requests(4)
    done, loaded = change_at(endless, versions, asked, "keep", 4.5)
    assert loaded == 4.5
    for request, made in zip(asked, done, strict=True):
        assert made.version.tolist() == [0] * 5 + [8] * 7
        assert made.cached_version is not None
        assert made.cached_version.tolist() == [0] * 12
        np.testing.assert_allclose(made.logp[:5], versions.plain(0, request, made)[:5], atol=1e-4)
        assert np.abs(made.logp[5:] - versions.plain(1, request, made)[5:]).max() > 1e-3


def test_recompute_goes_on_as_if_the_new_weights_had_read_everything(endless):
    versions, asked = Versions(), requests(4)
    done, _ = change_at(endless, versions, asked, "recompute", 4.5)
    for request, made in zip(asked, done, strict=True):
        assert made.version.tolist() == [0] * 5 + [8] * 7
        assert made.cached_version is None
        np.testing.assert_allclose(made.logp[:5], versions.plain(0, request, made)[:5], atol=1e-4)
        np.testing.assert_allclose(made.logp[5:], versions.plain(1, request, made)[5:], atol=1e-4)


def test_finish_lets_rows_end_and_nobody_join(endless):
    versions, asked = Versions(), requests(4)
    done, loaded = change_at(endless, versions, asked, "finish", 4.5)
    assert loaded == 12
    for request, made in zip(asked, done, strict=True):
        assert made.version.tolist() == [0] * 12
        np.testing.assert_allclose(made.logp, versions.plain(0, request, made), atol=1e-4)


def test_restart_sends_rows_back_as_they_are(endless):
    versions, asked = Versions(), requests(4)
    done, _ = change_at(endless, versions, asked, "restart", 4.5)
    assert [(made.finish, made.version.tolist()) for made in done] == [("interrupted", [0] * 5)] * 4


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_rows_that_join_after_a_change_find_no_old_keys(endless, policy):
    versions = Versions()
    # Long enough to fill a block of vLLM's cache, which later prompts would find.
    long = replace(requests(1)[0], prompt_ids=tuple(5 + i % 8 for i in range(140)), max_tokens=8)

    async def main():
        time = clock()
        engine = endless.engine(versions.store, time)
        await engine.load(versions.publications[0])
        first = asyncio.create_task(engine.generate(long))
        await time.until(3.5 * TOKEN_S)
        await engine.load(versions.publications[1], policy)
        second = await engine.generate(replace(long, id="later"))
        return await first, second

    first, second = run(main())
    assert set(first.version.tolist()) == {0, 8}
    assert second.version.tolist() == [8] * 8
    assert second.cached_version is None
    np.testing.assert_allclose(second.logp, versions.plain(1, long, second), atol=1e-4)


def test_a_prompt_that_is_found_in_the_cache_gives_the_same(endless):
    versions = Versions()
    long = replace(requests(1)[0], prompt_ids=tuple(5 + i % 8 for i in range(140)), max_tokens=8)

    async def main():
        engine = endless.engine(versions.store, clock())
        await engine.load(versions.publications[2])
        return await engine.generate(long), await engine.generate(replace(long, id="again"))

    first, again = run(main())
    assert again.token_ids.tolist() == first.token_ids.tolist()
    np.testing.assert_allclose(again.logp, versions.plain(2, long, again), atol=1e-4)


def test_every_step_is_one_token_of_virtual_time(endless):
    versions = Versions()

    async def main() -> float:
        time = clock()
        engine = endless.engine(versions.store, time)
        await engine.load(versions.publications[0])
        await asyncio.gather(*map(engine.generate, requests(5, max_tokens=9)))
        return time.now()

    assert run(main()) == pytest.approx(9 * TOKEN_S)


def test_progress_tells_what_was_sampled_and_it_can_be_gone_on_with(endless):
    versions, asked = Versions(), requests(3)

    async def main():
        time = clock()
        engine = endless.engine(versions.store, time)
        await engine.load(versions.publications[0])
        running = [asyncio.create_task(engine.generate(r)) for r in asked]
        await time.until(4.5 * TOKEN_S)
        assert engine.in_flight() is None
        made = await engine.progress()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        on = [replace(r, so_far=made[r.id]) for r in asked]
        return made, await asyncio.gather(*map(engine.generate, on))

    made, done = run(main())
    for request, whole in zip(asked, done, strict=True):
        assert made[request.id].finish == "interrupted"
        assert whole.token_ids[:5].tolist() == made[request.id].token_ids.tolist()
        assert len(whole) == 12
        np.testing.assert_allclose(whole.logp, versions.plain(0, request, whole), atol=1e-4)


def test_a_caller_that_is_cancelled_ends_its_completion_and_no_other(endless):
    versions, asked = Versions(), requests(3)

    async def main():
        time = clock()
        engine = endless.engine(versions.store, time)
        await engine.load(versions.publications[0])
        running = [asyncio.create_task(engine.generate(r)) for r in asked]
        await time.until(3.5 * TOKEN_S)
        running[1].cancel()
        rest = await asyncio.gather(running[0], running[2])
        with pytest.raises(asyncio.CancelledError):
            await running[1]
        return rest

    rest = run(main())
    assert [len(made) for made in rest] == [12, 12]
    assert endless.core._scheduler.get_num_unfinished_requests() == 0


def test_another_engines_flight_is_refused(moe):
    with pytest.raises(ResumeError, match=r"engine\.kind"):
        moe.engine(Versions().store, clock()).restore({})


def test_rows_that_vllm_sent_back_have_a_cache_of_the_version_that_read_them_again():
    """A cache of six blocks: three rows of 270 tokens do not fit, and vLLM sends one back."""
    small, versions = opened("tiny-moe", "float32", kv_cache_gib=0.0012, max_rows=8), Versions()
    small.core._eos_ids = []
    prompt = tuple(5 + i % 8 for i in range(120))
    asked = [replace(r, prompt_ids=(*prompt, 5 + i), max_tokens=150) for i, r in enumerate(requests(6))]
    done, _ = change_at(small, versions, asked, "keep", 100)
    assert any(set(made.version.tolist()) == {0, 8} and made.cached_version is None for made in done)
    assert any(made.cached_version is not None for made in done)
    for request, made in zip(asked, done, strict=True):
        cached = made.version if made.cached_version is None else made.cached_version
        for number, version in enumerate((0, 8)):
            fresh = (made.version == version) & (cached == version)
            np.testing.assert_allclose(made.logp[fresh], versions.plain(number, request, made)[fresh], atol=1e-4)
