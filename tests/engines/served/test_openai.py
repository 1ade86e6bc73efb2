from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from tether.engines.served.openai import Openai
from tether.errors import ConfigError, DataError

from .places import Place, ask, grown, run
from .toy import Double, Row, key_of, serving, stream


class OpenaiDouble(Double):
    """``/v1/completions`` with ids in and out. ``forgets``: a field of its answers that it does not know."""

    def __init__(self, *, forgets: str = "", is_raw: bool = False) -> None:
        super().__init__()
        self.forgets, self.is_raw = forgets, is_raw

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self.models),
                web.post("/v1/completions", self.complete),
                web.post("/reload", self.reload),
            ]
        )
        return app

    async def models(self, request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [{"id": "toy", "max_model_len": 512}]})

    async def reload(self, request: web.Request) -> web.StreamResponse:
        if self.rows:
            return self.complain("weights are given while nothing is under way")
        self.key = key_of((await request.json())["weights_path"])
        return web.Response()

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        sampling = {**body, "top_k": body.get("top_k", -1), "sampling_seed": body.get("seed")}
        row = Row("", body["prompt"], sampling, body["max_tokens"])
        if body.get("stream"):
            return await stream(request, self.messages(row))
        async for _ in self.sampled(row):
            pass
        return web.json_response(self.message(row, 0))

    async def messages(self, row: Row) -> Any:
        before = 0
        async for _ in self.sampled(row):
            yield self.message(row, before)
            before = len(row.ids)

    def message(self, row: Row, first: int) -> dict[str, Any]:
        told = row.told[first:]
        choice = {
            "index": 0,
            "text": "",
            "token_ids": row.ids[first:],
            "prompt_token_ids": row.prompt,
            "finish_reason": row.finish,
            "logprobs": {
                "token_logprobs": [t["tempered"] for t in told],
                "top_logprobs": [{f"token_id:{id}": value for value, id in t["top"][:2]} for t in told],
            },
        }
        choice.pop(self.forgets, None)
        return {"choices": [choice]}


@contextmanager
def at(double: OpenaiDouble, *, reloads: bool = True, **options: Any) -> Iterator[Place]:
    with serving(double.app()) as url:
        reload = f"{url}/reload" if reloads else ""
        yield Place(Openai(url=url, reload_url=reload, dtype="float32", **options))
    assert not double.complaints


def test_weights_change_between_completions_and_every_token_says_which() -> None:
    with at(OpenaiDouble()) as place:

        async def work() -> Any:
            await place.engine.load(place.publish(0))
            task = asyncio.create_task(place.engine.generate(ask(max_tokens=60)))
            await grown(place, 3)
            await place.engine.load(place.publish(8))
            return await task, await place.engine.generate(ask("b"))

        for made, version in zip(run(place, work), (0, 8), strict=True):
            assert set(made.version.tolist()) == {version}
            np.testing.assert_allclose(made.logp, place.expected(ask(), made), atol=1e-5)


def test_without_an_address_for_weights_it_is_no_engine_for_training_and_can_be_looked_at() -> None:
    with at(OpenaiDouble(), reloads=False) as place:
        assert not place.engine.capabilities.token_versions

        async def work() -> Any:
            published = place.publish(0)
            assert await place.engine.load(published) == published.fingerprint
            with pytest.raises(ConfigError, match=r"set engine\.reload_url"):
                await place.engine.load(place.publish(8))
            return await place.engine.answer([ask(max_tokens=4)])

        (made,) = run(place, work)
        assert set(made.version.tolist()) == {0}


def test_a_server_that_gives_no_ids_is_refused() -> None:
    double = OpenaiDouble(forgets="token_ids")
    with at(double) as place:

        async def work() -> None:
            await place.engine.load(place.publish(0))
            await place.engine.generate(ask())

        with pytest.raises(Exception, match="token_ids"):
            run(place, work)


def test_a_server_without_log_probs_is_refused() -> None:
    with at(OpenaiDouble(forgets="logprobs")) as place:

        async def work() -> None:
            await place.engine.load(place.publish(0))
            await place.engine.generate(ask())

        with pytest.raises(Exception, match="logprobs"):
            run(place, work)


def test_loads_inside_completions_are_refused() -> None:
    with at(OpenaiDouble()) as place:

        async def work() -> None:
            await place.engine.load(place.publish(0))
            with pytest.raises(ConfigError, match="it can finish"):
                await place.engine.load(place.publish(8), "keep")

        run(place, work)


def test_log_probs_that_are_said_to_be_processed_are_looked_at_where_that_matters() -> None:
    with at(OpenaiDouble(), temperature=0.5, logp="processed") as place:
        run(place, lambda: asyncio.sleep(0))
    with (
        pytest.raises(ConfigError, match="are raw: those of the model"),
        at(OpenaiDouble(is_raw=True), temperature=0.5, logp="processed"),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="are tempered: those of all ids"),
        at(OpenaiDouble(), top_k=3, logp="processed"),
    ):
        pass


def test_ids_of_another_vocabulary_are_an_error() -> None:
    double = OpenaiDouble()
    grow = double.grow

    def wrong(row: Row) -> None:
        grow(row)
        row.ids[-1] = 50

    double.grow = wrong  # type: ignore[method-assign]
    with at(double) as place:

        async def work() -> None:
            await place.engine.load(place.publish(0))
            await place.engine.generate(ask())

        with pytest.raises(DataError, match=r"ids must lie in 0 \.\. 23"):
            run(place, work)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (web.json_response({"a": 1}), r"engine\.url must be that of a server that speaks as engine 'openai'"),
        (web.json_response({"error": "who?"}, status=401), r"answered 401: .*who.*; engine\.key_variable names"),
    ],
    ids=["another protocol", "locked"],
)
def test_a_server_that_is_another_or_wants_a_key_is_told_with_the_way_out(answer: web.Response, told: str) -> None:
    async def answers(request: web.Request) -> web.Response:
        return answer

    app = web.Application()
    app.router.add_get("/v1/models", answers)
    with serving(app) as url, pytest.raises(ConfigError, match=told):
        Place(Openai(url=url, dtype="float32"))
