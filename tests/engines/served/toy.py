"""A model that doubles of servers sample from: its distribution follows from one number in the weights, the position
and the id before, so that a test can compute it too; and the thread that a double runs in."""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from safetensors.torch import load_file

VOCABULARY, EOS = 24, 1
TICK_S = 0.002


def key_of(folder: str) -> float:
    """The number in the weights of a folder."""
    (file,) = Path(folder).glob("*.safetensors")
    return float(load_file(file)["model.embed_tokens.weight"].float().sum())


def logits(key: float, context: list[int]) -> list[float]:
    """Of the next id; the end is improbable, so that completions are as long as asked for, mostly."""
    place = len(context) + 3 * context[-1]
    found = [2.0 * math.sin(key + 1.7 * id + place) for id in range(VOCABULARY)]
    found[EOS] -= 6.0
    return found


def logp(key: float, context: list[int], temperature: float = 1.0, among: list[int] | None = None) -> list[float]:
    """Of every id, ``softmax(logits / temperature)``; of those that are kept alone, if told."""
    scaled = [value / (temperature or 1.0) for value in logits(key, context)]
    if among is not None:
        scaled = [value if id in among else -math.inf for id, value in enumerate(scaled)]
    total = math.log(sum(math.exp(value) for value in scaled))
    return [value - total for value in scaled]


def kept(key: float, context: list[int], sampling: dict[str, Any]) -> list[int]:
    """The ids that top-k leaves."""
    order = sorted(range(VOCABULARY), key=lambda id: -logits(key, context)[id])
    return sorted(order[: sampling["top_k"]]) if sampling["top_k"] > 0 else order


class Row:
    """A completion in the making at a double."""

    def __init__(self, name: str, prompt: list[int], sampling: dict[str, Any], most: int) -> None:
        self.name, self.prompt, self.sampling, self.most = name, prompt, sampling, most
        self.ids: list[int] = []
        self.labels: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.finish: str | None = None
        self.random = random.Random(sampling.get("seed", sampling.get("sampling_seed")))

    def spans(self) -> list[dict[str, Any]]:
        """Of labels."""
        spans: list[dict[str, Any]] = []
        for place, label in enumerate(self.labels):
            if spans and spans[-1]["version"] == label:
                spans[-1]["end"] = place + 1
            else:
                spans.append({"version": label, "start": place, "end": place + 1})
        return spans


class Double:
    """A server that samples one token a tick for each row, unless it is paused. It lists every call, and complains of
    what its protocol does not allow."""

    def __init__(self) -> None:
        self.key, self.label = 0.0, "default"
        self.is_paused = self.is_aborting = self.is_raw = False
        self.waits_at: int | None = None
        """How long rows grow before the next pause, if a test wants some to be under way then."""
        self.rows: list[Row] = []
        self.calls: list[str] = []
        self.bodies: list[Any] = []
        self.complaints: list[str] = []
        self.faults: dict[str, Any] = {}
        """By path: what happens instead, once for each entry."""

    def complain(self, what: str) -> web.Response:
        """Refuse."""
        self.complaints.append(what)
        return web.json_response({"error": what}, status=400)

    def check(self, found: dict[str, Any], known: dict[str, Any], where: str) -> None:
        """Note unknown fields and wrong types."""
        for name, value in found.items():
            if name not in known:
                self.complaints.append(f"{where}: no field {name}")
            elif not isinstance(value, known[name]) or (isinstance(value, bool) and known[name] is not bool):
                self.complaints.append(f"{where}: {name} is {value!r}")

    async def sampled(self, row: Row) -> Any:
        """Let a row grow by a token at a time, until it ends."""
        self.rows.append(row)
        try:
            while row.finish is None:
                await asyncio.sleep(TICK_S)
                if self.is_aborting:
                    row.finish = "abort"
                elif self.is_paused or (self.waits_at is not None and len(row.ids) >= self.waits_at):
                    continue
                else:
                    self.grow(row)
                yield row
        finally:
            self.rows.remove(row)

    def grow(self, row: Row) -> None:
        """One token."""
        context, temperature = [*row.prompt, *row.ids], row.sampling["temperature"]
        among = kept(self.key, context, row.sampling)
        is_cut = len(among) < VOCABULARY
        real = logp(self.key, context, temperature, among if is_cut else None)
        weights = [math.exp(value) for value in real]
        id = real.index(max(real)) if temperature == 0 else row.random.choices(range(VOCABULARY), weights)[0]
        tempered = logp(self.key, context, 1.0 if self.is_raw else temperature)
        top = sorted(((value, id) for id, value in enumerate(tempered)), reverse=True)
        row.told.append({"real": real[id], "tempered": tempered[id], "top": top, "kept": among})
        row.ids.append(id)
        row.labels.append(self.label)
        if id == EOS and not row.sampling.get("never_stops"):
            row.finish = "stop"
        elif len(row.ids) == row.most:
            row.finish = "length"

    async def fault(self, path: str, request: web.Request) -> web.StreamResponse | None:
        """What a test wants to go wrong under this path, if anything."""
        self.calls.append(path)
        if not (waiting := self.faults.get(path)):
            return None
        return await waiting.pop(0)(request)


@contextmanager
def serving(app: web.Application) -> Iterator[str]:
    """Serve in a thread; gives the address."""
    loop, ready, found = asyncio.new_event_loop(), threading.Event(), {}

    async def start() -> None:
        runner = found["runner"] = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found["port"] = site._server.sockets[0].getsockname()[1]
        ready.set()

    def run() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(found["runner"].cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{found['port']}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def hang(request: web.Request) -> web.StreamResponse:
    """Say nothing."""
    await asyncio.sleep(3600)
    raise AssertionError


async def break_down(request: web.Request) -> web.StreamResponse:
    """Answer 500."""
    return web.json_response({"error": "out of memory"}, status=500)


async def refuse(request: web.Request) -> web.StreamResponse:
    """Answer 400."""
    return web.json_response({"error": "not now"}, status=400)


async def babble(request: web.Request) -> web.StreamResponse:
    """Answer with something else than JSON."""
    return web.Response(text="data: {half an\n\n", content_type="text/event-stream")


async def die(request: web.Request) -> web.StreamResponse:
    """Say in the middle of an answer, whose status was well, that there will be no more of it."""
    return web.Response(text='data: {"error": "EngineCore encountered an issue"}\n\n', content_type="text/event-stream")


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Cut the connection after a first message of nothing."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(b": hello\n\n")
    assert request.transport is not None
    request.transport.close()
    return response


async def stream(request: web.Request, messages: Any) -> web.StreamResponse:
    """Server-sent events."""
    import json

    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    async for message in messages:
        await response.write(b"data: " + json.dumps(message).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response
