"""Adapters in vLLM: the adapter alone arrives, and what vLLM then says is what the trainer's model says with it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tether.config.build import train
from tether.config.recipe import load
from tether.engines.vllm import Vllm
from tether.engines.vllm.engine import VllmEngine
from tether.errors import ConfigError, ModelError, SelfCheckError
from tether.journal import RunView
from tether.models.loading import LoadedModel, load_model, load_skeleton
from tether.models.lora import Lora, adapt, published
from tether.placement.inline import FreeClock, Inline
from tether.ports import GenerationRequest
from tether.records import Completion
from tether.weights.memory import MemoryStore

FLOAT = torch.float32
LORA = Lora(rank=4)
TOKEN_S = 0.02
"""Of one step, as the placement has it."""


def trainer(source: str, lora: Lora = LORA) -> LoadedModel:
    loaded = load_model(source)
    adapt(loaded.model, lora, dtype=FLOAT)
    return loaded


def turn(loaded: LoadedModel, seed: int) -> None:
    """Another adapter, of a size that makes a difference."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in published(loaded.model).items():
            if ".lora_" in name:
                tensor.copy_(torch.randn(tensor.shape, generator=random) * 0.15)


def asked(temperature: float, max_tokens: int = 10) -> list[GenerationRequest]:
    return [
        GenerationRequest(
            id=f"r{i}", prompt_ids=tuple(range(5, 9 + i)), seed=i, max_tokens=max_tokens, temperature=temperature
        )
        for i in range(4)
    ]


@torch.no_grad()
def logits(loaded: LoadedModel, request: GenerationRequest, made: Completion) -> torch.Tensor:
    ids = torch.tensor([[*request.prompt_ids, *made.token_ids.tolist()]])
    return loaded.model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1].float()


def logp(loaded: LoadedModel, request: GenerationRequest, made: Completion) -> np.ndarray:
    ids = torch.from_numpy(made.token_ids.astype(np.int64))
    return logits(loaded, request, made).log_softmax(-1).gather(1, ids[:, None])[:, 0].numpy()


@pytest.fixture(scope="module", params=["tiny-moe", "tiny-dense"])
def engine(request: pytest.FixtureRequest) -> Any:
    store = MemoryStore("float32", keep=9)
    options = Vllm(dtype="float32", max_rows=8, max_tokens=16, kv_cache_gib=0.25)
    opened = options.open(request.param, store=store, clock=FreeClock(), device="cpu", lora=LORA)
    return opened, store, request.param


def test_each_adapter_that_arrives_is_the_one_that_answers(engine):
    opened, store, source = engine
    loaded, base = trainer(source), load_model(source)
    before: list[list[float]] = []
    first = opened.version + 1
    for number in range(3):
        if number:
            turn(loaded, number)
        publication = store.publish(first + number, published(loaded.model))
        assert publication.num_bytes < 0.15 * sum(p.nbytes for p in base.model.parameters())
        assert asyncio.run(opened.load(publication)) == publication.fingerprint
        requests, gaps = asked(0.0), []
        answers = asyncio.run(opened.answer(requests))
        for request, made in zip(requests, answers, strict=True):
            assert made.token_ids.tolist() == logits(loaded, request, made).argmax(-1).tolist()
            np.testing.assert_allclose(made.logp, logp(loaded, request, made), atol=1e-4)
            gaps.append(np.abs(made.logp - logp(base, request, made)).max())
        assert (max(gaps) > 0.02) == (number > 0)
        for request, made in zip(asked(1.0), asyncio.run(opened.answer(asked(1.0))), strict=True):
            np.testing.assert_allclose(made.logp, logp(loaded, request, made), atol=1e-4)
            assert set(made.version.tolist()) == {first + number}
        told = [made.logp.tolist() for made in answers]
        assert told != before
        before = told
    assert opened._core._engine.list_loras() == {1}
    assert not list(Path(tempfile.gettempdir()).glob("tether-adapter-*"))


def test_rows_under_way_go_on_with_the_adapter_that_comes(engine, monkeypatch):
    """In place: to vLLM it is the same adapter, so that none of them asks for one that is gone."""
    opened, store, source = engine
    monkeypatch.setattr(opened._core, "_eos_ids", [])
    loaded, other = trainer(source), trainer(source)
    turn(loaded, 5)
    turn(other, 6)
    first = opened.version + 1
    one = store.publish(first, published(loaded.model))
    two = store.publish(first + 1, published(other.model))
    requests = asked(1.0, max_tokens=12)

    async def main() -> list[Completion]:
        time = Inline().clock()
        core, skeleton = opened._core, load_skeleton(source, dtype="float32")
        again = VllmEngine(core, skeleton, opened._options, store=store, clock=time, adapter=opened._taken)
        await again.load(one)
        running = asyncio.gather(*map(again.generate, requests))
        await time.until(4.5 * TOKEN_S)
        await again.load(two, "recompute")
        opened._held = two
        return list(await running)

    seen = set()
    for request, made in zip(requests, Inline().run(main()), strict=True):
        old = made.version == first
        expected = np.where(old, logp(loaded, request, made), logp(other, request, made))
        np.testing.assert_allclose(made.logp, expected, atol=1e-4)
        seen |= set(made.version.tolist())
    assert seen == {first, first + 1}


def test_an_adapter_of_another_base_or_shape_is_refused_and_the_one_before_goes_on(engine):
    before_it, store, source = engine
    core, skeleton = before_it._core, load_skeleton(source, dtype="float32")
    opened = VllmEngine(core, skeleton, before_it._options, store=store, clock=FreeClock(), adapter=before_it._taken)
    sound = trainer(source)
    turn(sound, 7)
    version = store._count.newest + 1
    asyncio.run(opened.load(store.publish(version, published(sound.model))))
    before = [made.logp.tolist() for made in asyncio.run(opened.answer(asked(1.0)))]
    number, other = store._count.number, MemoryStore("float32")
    other._count.number = number
    opened._holding._store = other
    elsewhere = other.publish(version + 1, published(trainer(f"{source}-sorting").model))
    with pytest.raises(ModelError, match="must meet the weights that it was trained on"):
        asyncio.run(opened.load(elsewhere))
    other._count.number = number
    smaller = other.publish(version + 2, published(trainer(source, Lora(rank=2)).model))
    with pytest.raises(ModelError, match="must fit the engine's model"):
        asyncio.run(opened.load(smaller))
    opened._holding._store = store
    assert opened.version == version
    assert [made.logp.tolist() for made in asyncio.run(opened.answer(asked(1.0)))] == before


def test_a_rank_that_vllm_does_not_know_is_refused_before_it_starts():
    options = Vllm(dtype="float32")
    with pytest.raises(ConfigError, match="must be at most 512 for vLLM"):
        options.open("tiny-dense", store=MemoryStore("float32"), clock=FreeClock(), device="cpu", lora=Lora(rank=600))


SETTINGS = (
    *("run.steps=2", "run.device=cpu", "run.samples=0", "eval.prompts=0", "checkpoint.every=0", "pipeline.lag=1"),
    *("pipeline.prompts_per_step=2", "pipeline.group_size=4", "algorithm.preset=grpo", "trainer.lr=0.02"),
    *("trainer.warmup=0", "engine.kind=vllm", "engine.dtype=float32", "engine.max_rows=16", "model.lora_rank=4"),
)


def test_a_run_trains_an_adapter_with_vllm_and_every_check_is_within_its_floor(tmp_path):
    view = RunView(train(load(settings=SETTINGS), tmp_path / "run"))
    assert view.status == "finished"
    checks = view.of("check")
    assert [event.version for event in checks] == [0, 1, 2]
    for event in checks:
        assert event.metrics["probe/distance"].value < 1e-4
    assert checks[0].metrics["probe/progress"].value == pytest.approx(1.0, abs=0.01)


def test_a_vllm_that_ignores_the_adapter_fails_before_training(tmp_path, monkeypatch):
    """As where requests do not name it: it is loaded, acknowledged, listed, and nobody goes through it."""
    from tether.engines.vllm.core import Core

    loaded = Core.replace_adapter

    def forgetting(self: Any, folder: Path) -> None:
        loaded(self, folder)
        self._adapter = None

    monkeypatch.setattr(Core, "replace_adapter", forgetting)
    with pytest.raises(SelfCheckError, match=r"'agreement' failed at version -1: .*answer with its base alone"):
        train(load(settings=SETTINGS), tmp_path / "run")
    assert not RunView(tmp_path / "run").steps
