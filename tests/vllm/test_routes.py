"""The experts that vLLM's routers choose, told with the tokens, and replayed."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.pipeline.making import group_of, rollout_of
from tether.core.advantage import DrGRPO
from tether.engines.vllm.engine import VllmEngine
from tether.engines.vllm.options import Vllm
from tether.errors import DataError
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.pipeline.packing import Step, pack
from tether.pipeline.routing import own_routes, rerouted_share, with_routes
from tether.pipeline.scoring import Scorer
from tether.placement.inline import FreeClock
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Completion, Experts, Rollout
from tether.replay.routing import Routing
from tether.weights.memory import MemoryStore

if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed; make test-engines", allow_module_level=True)

BLOCK = 128
"""Tokens of a block of vLLM's key-value cache on a CPU; a prefix is found in whole blocks."""


class Bench:
    """One engine, and a trainer's model of the same weights."""

    def __init__(self, dtype: str, source: str = "tiny-moe") -> None:
        self.dtype, self.store = dtype, MemoryStore(dtype)
        self.loaded: LoadedModel = load_model(source)
        self.policy = Policy(self.loaded)
        options = Vllm(dtype=dtype, max_rows=8, kv_cache_gib=0.1)
        self.engine: VllmEngine = options.open(source, store=self.store, clock=FreeClock(), device="cpu")
        self.number = 0
        self.begun = {name: tensor.clone() for name, tensor in self.loaded.model.state_dict().items()}

    def load(self, in_flight: Any = "finish") -> Any:
        """Publish what the trainer's model holds, and have the engine take it."""
        publication = self.store.publish(self.number, self.policy.weights())
        self.number += 1
        return self.engine.load(publication, in_flight)

    def reset(self) -> None:
        self.loaded.model.load_state_dict(self.begun)
        asyncio.run(self.load())

    def answer(self, requests: Sequence[GenerationRequest]) -> list[Rollout]:
        done = asyncio.run(self.engine.answer(requests))
        return [rollout_of(f"r/{i}", r.prompt_ids, c) for i, (r, c) in enumerate(zip(requests, done, strict=True))]

    def own(self, rollouts: Sequence[Rollout]) -> dict[str, Experts]:
        return own_routes(self.step(rollouts), self.policy)

    def step(self, rollouts: Sequence[Rollout], routing: Routing | None = None) -> Step:
        step = pack([group_of(0, rollouts)], DrGRPO(single="zero"), token_budget=8192, pad_id=0, device="cpu")
        return with_routes(step, routing, self.policy)

    def apart(self, rollouts: Sequence[Rollout], routing: Routing | None = None) -> np.ndarray:
        """|d| of every token, in the trainer's arithmetic."""
        return np.abs(
            Scorer(self.policy, 8192, 1.0, routing)(rollouts) - np.concatenate([r.completion.logp for r in rollouts])
        )


@pytest.fixture(scope="module")
def made() -> Bench:
    return Bench("float32")


@pytest.fixture
def bench(made: Bench) -> Bench:
    made.reset()
    return made


def ids_of(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(3, 20, count).tolist())


def asked(prompts: Sequence[Sequence[int]], **changes: Any) -> list[GenerationRequest]:
    table = {"max_tokens": 12, "temperature": 1.0, "routing": True, **changes}
    return [GenerationRequest(id=f"r/{i}", prompt_ids=tuple(p), seed=i, **table) for i, p in enumerate(prompts)]


def experts_of(completion: Completion) -> Experts:
    assert completion.experts is not None
    return completion.experts


def check(bench: Bench, rollouts: Sequence[Rollout]) -> None:
    """In float32 the engine's routes are those of the trainer's routers, in every layer and at every token."""
    own = bench.own(rollouts)
    for rollout in rollouts:
        experts = experts_of(rollout.completion)
        shape = bench.policy.routers.shape
        assert experts.shape == (
            len(rollout.prompt.token_ids) + len(rollout.completion),
            shape.num_layers,
            shape.k,
        )
        assert (experts[:-1] != NO_EXPERT).all()
        assert (experts[-1] == NO_EXPERT).all()
        assert np.sort(experts, -1).tolist() == np.sort(own[rollout.id], -1).tolist()
    assert bench.step(rollouts, Routing()).num_unrouted == 0


@contextlib.contextmanager
def reads_of(bench: Bench) -> Iterator[list[tuple[int, int]]]:
    """First and last position of everything that vLLM reads inside."""
    seen: list[tuple[int, int]] = []
    core = bench.engine._core
    step = core.step

    def listen(**options: Any) -> Any:
        taken = step(**options)
        seen.extend((read.start, read.end) for read in taken.read.values())
        return taken

    core.step = listen  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        core.step = step  # type: ignore[method-assign]


def test_routes_of_a_mixed_batch_are_those_of_the_trainers_routers(bench: Bench) -> None:
    assert bench.engine.capabilities.routing
    check(bench, bench.answer(asked([ids_of(5 + 7 * i, i) for i in range(12)])))


def test_completions_that_join_and_leave_keep_their_routes_apart(bench: Bench) -> None:
    requests = [replace(r, max_tokens=1 + 2 * i) for i, r in enumerate(asked([ids_of(4 + i, i) for i in range(14)]))]

    async def together() -> list[Completion]:
        return await asyncio.gather(*map(bench.engine.generate, requests))

    done = asyncio.run(together())
    check(bench, [rollout_of(r.id, r.prompt_ids, c) for r, c in zip(requests, done, strict=True)])


def test_a_prompt_read_in_parts_has_one_route_a_token(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = bench.engine._core._scheduler
    monkeypatch.setattr(scheduler, "max_num_scheduled_tokens", 16)
    monkeypatch.setattr(scheduler.scheduler_config, "enable_chunked_prefill", True)
    with reads_of(bench) as reads:  # greedy: with a generator a row, the build for processors cannot read in parts
        rollouts = bench.answer(asked([ids_of(50, 1), ids_of(30, 2), ids_of(3, 3)], temperature=0.0))
    assert max(end - start for start, end in reads) <= 16
    check(bench, rollouts)


def test_what_the_prefix_cache_had_has_the_routes_of_when_it_was_computed(bench: Bench) -> None:
    common = ids_of(BLOCK + 9, 0)
    check(bench, bench.answer(asked([common])))
    with reads_of(bench) as reads:
        rollouts = bench.answer(asked([(*common, *ids_of(4 + i, i)) for i in range(3)]))
    assert [start for start, end in reads if end > start + 1] == [BLOCK] * 3
    check(bench, rollouts)


def test_who_asks_for_routes_finds_no_cache_entry_without_one(bench: Bench) -> None:
    common = ids_of(BLOCK + 9, 0)
    (silent,) = bench.answer(asked([common], routing=False))
    assert silent.completion.experts is None
    with reads_of(bench) as reads:
        rollouts = bench.answer(asked([(*common, 5)]))
    assert reads[0] == (0, len(common) + 1)
    check(bench, rollouts)


def test_routes_follow_the_weights(bench: Bench) -> None:
    """vLLM lays its layers out anew at a load; its routers are still listened to."""
    before = bench.answer(asked([ids_of(9, 1)] * 4))
    with torch.no_grad():
        for layer in bench.loaded.model.model.layers:
            layer.mlp.gate.weight.copy_(layer.mlp.gate.weight.roll(1, 0))
    asyncio.run(bench.load())
    after = bench.answer(asked([ids_of(9, 1)] * 4))
    check(bench, after)
    assert experts_of(before[0].completion)[:8].tolist() != experts_of(after[0].completion)[:8].tolist()


def test_a_completion_gone_on_with_has_each_route_once_and_keeps_those_it_came_with(bench: Bench) -> None:
    """Concatenating what the engine tells of the whole with what was there gives twice the length (field notes 138)."""
    (request,) = asked([ids_of(7, 3)])
    (whole,) = bench.answer([request])
    begun = whole.completion
    count = len(begun) // 2
    assert count >= 2
    experts = experts_of(begun)[: 7 + count].copy()
    experts[-1], experts[2], experts[4] = NO_EXPERT, [[6, 7]] * 3, NO_EXPERT
    part = Completion(
        token_ids=begun.token_ids[:count],
        logp=begun.logp[:count],
        version=begun.version[:count],
        finish="interrupted",
        experts=experts,
    )
    (done,) = bench.answer([replace(request, so_far=part)])
    assert len(experts_of(done.completion)) == 7 + len(done.completion)
    assert (experts_of(done.completion)[2] == [6, 7]).all()
    own = bench.own([done])[done.id]
    kept = np.arange(len(own)) != 2
    assert np.sort(experts_of(done.completion), -1)[kept].tolist() == np.sort(own, -1)[kept].tolist()


@pytest.mark.parametrize("way", ["keep", "recompute"])
def test_routes_under_way_stay_when_weights_change(bench: Bench, way: Any) -> None:
    requests = asked([ids_of(6 + i, i) for i in range(3)], max_tokens=40)

    async def changing() -> tuple[dict[str, Completion], list[Completion]]:
        tasks = [asyncio.ensure_future(bench.engine.generate(request)) for request in requests]
        progress: dict[str, Completion] = {}
        while len(progress) < len(requests) or min(map(len, progress.values())) < 3:
            await asyncio.sleep(0)
            progress = dict(await bench.engine.progress())
        with torch.no_grad():
            for layer in bench.loaded.model.model.layers:
                layer.mlp.gate.weight.copy_(layer.mlp.gate.weight.roll(1, 0))
        await bench.load(way)
        return progress, await asyncio.gather(*tasks)

    before, after = asyncio.run(changing())
    for request, done in zip(requests, after, strict=True):
        begun = experts_of(before[request.id])
        experts = experts_of(done)
        assert experts.shape[0] == len(request.prompt_ids) + len(done)
        assert experts[: len(begun) - 1].tolist() == begun[:-1].tolist()
        assert (experts[:-1] != NO_EXPERT).all()
        assert len({*done.version.tolist()}) == 2


def test_what_is_told_is_what_was_computed_with_also_where_experts_tie(bench: Bench) -> None:
    """Four experts of each half have one router row: which two of them are taken is up to the kernel."""
    with torch.no_grad():
        for layer in bench.loaded.model.model.layers:
            weight = layer.mlp.gate.weight
            weight.copy_(weight[[0, 0, 0, 0, 4, 4, 4, 4]])
    asyncio.run(bench.load())
    rollouts = bench.answer(asked([ids_of(9, i) for i in range(8)]))
    replayed = bench.apart(rollouts, Routing())
    assert replayed.max() < 1e-4
    wrong = [replace(r, completion=replace(r.completion, experts=experts_of(r.completion) ^ 3)) for r in rollouts]
    for rollout in wrong:
        experts_of(rollout.completion)[-1] = NO_EXPERT
    assert bench.apart(wrong, Routing()).max() > 1e-2


def test_replayed_routes_bring_the_trainer_to_the_floor_of_the_number_format() -> None:
    bench = Bench("bfloat16")
    with torch.no_grad():
        for parameter in bench.loaded.model.parameters():
            parameter.copy_(parameter.bfloat16().float())
    asyncio.run(bench.load())
    rollouts = bench.answer(asked([ids_of(12, i) for i in range(64)], max_tokens=24))
    own = bench.own(rollouts)
    share, num_pairs = rerouted_share(rollouts, own)
    assert num_pairs == sum(len(own[r.id]) - 1 for r in rollouts) * 3
    assert 0 < share < 0.1
    assert bench.step(rollouts, Routing()).num_unrouted == 0
    plain, replayed = bench.apart(rollouts), bench.apart(rollouts, Routing())
    first = [len(r.prompt.token_ids) - 1 for r in rollouts]
    differs = [(np.sort(own[r.id], -1) != np.sort(experts_of(r.completion), -1)).any((-1, -2)) for r in rollouts]
    here = np.concatenate([d[f:-1] for d, f in zip(differs, first, strict=True)])
    assert here.sum() > 10
    assert replayed[here].mean() < plain[here].mean() / 2
    assert replayed[here].mean() < 2 * plain[~here].mean()


def test_a_dense_model_tells_no_routes() -> None:
    bench = Bench("float32", "tiny-dense")
    assert not bench.engine.capabilities.routing
    with pytest.raises(DataError, match="take a mixture of experts, or no replay"):
        bench.answer(asked([ids_of(4, 0)]))
