"""A real vLLM server, started and ended by the engine: one for all tests of this file but the long one."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm")

from tether.engines.served.vllm_server import VllmServer
from tether.errors import EngineLostError
from tether.models.loading import load_model
from tether.placement.inline import FreeClock
from tether.ports import GenerationRequest, InFlight, Publication
from tether.records import Completion, Truncation
from tether.weights.memory import MemoryStore

MODEL = "tiny-moe"
MANY = 40
LONG = 400
"""Tokens, so that a busy machine has time to change weights before all are there."""
AGREE = 1e-4
"""Nats between a float32 trainer and a float32 server."""


class Home:
    """A server, the weights that were published to it, and the loop that talks to it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.num_made = 0
        self.store = MemoryStore("float32", keep=30)
        self.models: dict[int, Any] = {0: load_model(MODEL).model}
        options = VllmServer(dtype="float32", max_rows=32, start_s=300.0)
        self.engine = options.open(MODEL, store=self.store, clock=FreeClock(), device="cpu")

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 300))

    def go_on_and_on(self) -> None:
        """Have completions end at their limit alone."""
        self.engine._speech._eos_ids = []
        self.engine._servable = replace(self.engine._servable, eos_ids=())

    def made(self) -> Publication:
        """Other weights, published."""
        version = 8 * self.num_made
        self.num_made += 1
        if version:
            model = copy.deepcopy(self.models[max(self.models)])
            with torch.no_grad():
                for p in model.parameters():
                    p += 0.1 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(version))
            self.models[version] = model
        return self.store.publish(version, self.models[version].state_dict())

    async def load(self, published: Publication, way: InFlight = "finish") -> None:
        """Have the server take them."""
        assert await self.engine.load(published, way) == published.fingerprint
        assert self.engine.version == published.version

    def distance(self, request: GenerationRequest, made: Completion) -> float:
        """Most nats between its log-probs and the trainer's, under the weights that each token says."""
        ids = made.token_ids.tolist()
        found = np.full(len(ids), np.nan, np.float32)
        for version in set(made.version.tolist()):
            with torch.no_grad():
                logits = self.models[version](torch.tensor([[*request.prompt_ids, *ids]])).logits[0].float()
            first = len(request.prompt_ids) - 1
            logits = logits[first : first + len(ids)] / (request.temperature or 1.0)
            if made.kept is None and request.truncation.top_k:
                least = logits.topk(request.truncation.top_k).values[:, -1:]
                logits = logits.masked_fill(logits < least, -torch.inf)
            logp = logits.log_softmax(-1)[torch.arange(len(ids)), torch.tensor(ids)].numpy()
            chosen = made.version == version
            found[chosen] = logp[chosen]
        return float(np.abs(found - made.logp).max())


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    home = Home()
    home.run(home.load(home.made()))
    yield home
    home.run(home.engine.close())
    home.loop.close()


def ask(id: str = "a", **options: Any) -> GenerationRequest:
    return GenerationRequest(
        **{"id": id, "prompt_ids": (5, 6, 7), "seed": hash(id) % 1000, "max_tokens": 24, "temperature": 1.0, **options}
    )


def test_log_probs_of_a_float32_server_are_the_trainers_after_every_publication(home: Home) -> None:
    for _ in range(3):
        asked = [ask(f"r{i}", seed=i, prompt_ids=(5, 6 + i % 3)) for i in range(12)]

        async def work(asked: list[GenerationRequest] = asked) -> list[Completion]:
            return await asyncio.gather(*(home.engine.generate(request) for request in asked))

        mades = home.run(work())
        assert max(home.distance(*pair) for pair in zip(asked, mades, strict=True)) < AGREE
        assert {v for made in mades for v in made.version.tolist()} == {home.engine.version}
        home.run(home.load(home.made()))


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"temperature": 0.0}, {"truncation": Truncation(top_k=3)}])
def test_log_probs_are_of_the_distribution_sampled_from(home: Home, options: dict[str, Any]) -> None:
    request = ask(**options)
    made = home.run(home.engine.generate(request))
    assert home.distance(request, made) < AGREE


def test_alternatives_are_the_most_probable(home: Home) -> None:
    made = home.run(home.engine.generate(ask(alternatives=5)))
    assert made.top_k_ids.shape == (len(made), 5)
    sampled = made.top_k_ids == made.token_ids[:, None]
    np.testing.assert_allclose(made.top_k_logp[sampled], made.logp[sampled.any(1)], atol=1e-6)
    assert (np.diff(made.top_k_logp) <= 0).all()


async def flown(home: Home, change: Callable[[], Awaitable[Any]], name: str) -> tuple[list[Any], list[Any]]:
    """Long completions, and a change when some tokens of one are there and it goes on."""
    home.go_on_and_on()
    asked = [ask(f"{name}{i}", seed=i, max_tokens=LONG, temperature=1.5) for i in range(MANY)]
    tasks = [asyncio.create_task(home.engine.generate(request)) for request in asked]
    while True:
        told = await home.engine.progress()
        if sum(len(made) >= 3 for made in told.values()) >= 4:
            break
        assert not all(task.done() for task in tasks), "all ended before anything could change"
        await asyncio.sleep(0.002)
    await change()
    return asked, await asyncio.gather(*tasks, return_exceptions=True)


def test_caches_computed_anew_make_every_token_after_a_load_wholly_new(home: Home) -> None:
    published = home.made()
    asked, mades = home.run(flown(home, lambda: home.load(published, "recompute"), "recompute"))
    mixed = [pair for pair in zip(asked, mades, strict=True) if len(set(pair[1].version.tolist())) == 2]
    assert mixed
    assert max(home.distance(*pair) for pair in zip(asked, mades, strict=True)) < AGREE
    assert all(made.cached_version is None for _, made in mixed)


def test_kept_caches_go_on_and_are_told(home: Home) -> None:
    published = home.made()
    asked, mades = home.run(flown(home, lambda: home.load(published, "keep"), "keep"))
    mixed = [pair for pair in zip(asked, mades, strict=True) if len(set(pair[1].version.tolist())) == 2]
    assert mixed
    for request, made in mixed:
        count = int((made.version == made.version[0]).sum())
        before = Completion(
            token_ids=made.token_ids[:count],
            logp=made.logp[:count],
            version=made.version[:count],
            finish="interrupted",
        )
        assert home.distance(request, before) < AGREE
        assert set(made.cached_version.tolist()) == {int(made.version[0])}
    assert max(home.distance(*pair) for pair in mixed) > AGREE, "the old keys must be seen in the new tokens"


def test_completions_that_restart_come_back_and_go_on_under_the_new_weights(home: Home) -> None:
    published = home.made()
    asked, mades = home.run(flown(home, lambda: home.load(published, "restart"), "restart"))
    broken = [(r, made) for r, made in zip(asked, mades, strict=True) if made.finish == "interrupted" and len(made)]
    assert broken
    request, first = broken[0]
    again = GenerationRequest(
        id=request.id, prompt_ids=request.prompt_ids, seed=request.seed, max_tokens=LONG, temperature=1.5, so_far=first
    )
    whole = home.run(home.engine.generate(again))
    assert whole.token_ids[: len(first)].tolist() == first.token_ids.tolist()
    assert set(whole.version.tolist()) == {int(first.version[0]), home.engine.version}
    assert home.distance(again, whole) < AGREE


@pytest.mark.long  # it starts a second server
def test_a_server_that_is_killed_is_lost_and_the_next_load_starts_another(home: Home) -> None:
    def kill() -> None:
        guard = home.engine._server._process.pid
        children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        (server,) = (int(pid) for pid in children if "guard.py" not in Path(f"/proc/{pid}/cmdline").read_text())
        os.kill(server, 9)

    async def change() -> None:
        kill()

    _, ended = home.run(flown(home, change, "killed"))
    assert any(isinstance(error, EngineLostError) for error in ended)
    assert home.engine.version == -1
    home.run(home.load(home.made()))
    request = ask("after")
    assert home.distance(request, home.run(home.engine.generate(request))) < AGREE
