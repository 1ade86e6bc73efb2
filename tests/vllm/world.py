"""A vLLM that many engines share one after the other, and a trainer's model with some versions of weights."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from tether.engines.vllm import Vllm
from tether.engines.vllm.core import Core, open_core
from tether.engines.vllm.engine import VllmEngine
from tether.models.loading import LoadedModel, load_model, load_skeleton
from tether.placement.inline import Inline, InlineClock
from tether.ports import GenerationRequest, InFlight, Publication, WeightStore
from tether.records import Completion, Truncation
from tether.weights.memory import MemoryStore

TOKEN_S = 0.02
"""Of one step, as the placement has it."""


@dataclass(frozen=True)
class Opened:
    core: Core
    skeleton: LoadedModel
    options: Vllm

    def engine(self, store: WeightStore, clock: Any, **options: Any) -> VllmEngine:
        return VllmEngine(self.core, self.skeleton, replace(self.options, **options), store=store, clock=clock)


def opened(source: str, dtype: str, **options: Any) -> Opened:
    given = {"max_rows": 16, "max_tokens": 16, "kv_cache_gib": 0.25, **options}
    table = Vllm(dtype=dtype, **given)
    skeleton = load_skeleton(source, dtype=dtype)
    return Opened(open_core(skeleton, table, "cpu"), skeleton, table)


@functools.cache
def trainer(source: str = "tiny-moe", seed: int = 0) -> LoadedModel:
    """The model; every seed but 0 changes all its weights by a tenth of their size."""
    loaded = load_model(source)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in loaded.model.parameters() if seed else ():
            weight.add_(torch.randn(weight.shape, generator=random) * 0.1 * weight.abs().mean())
    return loaded


class Versions:
    """Versions 0, 8 and 16, published through a store, and the models that made them."""

    def __init__(self, source: str = "tiny-moe", dtype: str = "float32") -> None:
        self.store = MemoryStore(dtype, keep=3)
        self.models = [trainer(source, seed) for seed in range(3)]
        self.publications: list[Publication] = [
            self.store.publish(8 * i, made.model.state_dict()) for i, made in enumerate(self.models)
        ]

    def plain(self, number: int, request: GenerationRequest, made: Completion) -> np.ndarray:
        """Log-probs ``[L]`` of a completion by one forward pass, under the request's temperature and truncation."""
        return plain(self.models[number], request, made)


@torch.no_grad()
def logits_of(loaded: LoadedModel, request: GenerationRequest, made: Completion) -> torch.Tensor:
    """Logits ``[L, V]`` behind each token, divided by the temperature."""
    ids = torch.tensor([[*request.prompt_ids, *made.token_ids.tolist()]])
    start = len(request.prompt_ids) - 1
    return loaded.model(ids).logits[0, start:-1].float() / (request.temperature or 1.0)


def plain(loaded: LoadedModel, request: GenerationRequest, made: Completion) -> np.ndarray:
    logits = logits_of(loaded, request, made)
    if made.kept is not None:
        mask = torch.full_like(logits, float("-inf"))
        for token in range(len(made)):
            mask[token, torch.from_numpy(made.kept.of(token).astype(np.int64))] = 0.0
        logits = logits + mask
    ids = torch.from_numpy(made.token_ids.astype(np.int64))
    return torch.log_softmax(logits, -1).gather(1, ids[:, None])[:, 0].numpy()


def requests(count: int, **fields: Any) -> list[GenerationRequest]:
    given = {"max_tokens": 12, "temperature": 1.0, **fields}
    return [
        GenerationRequest(id=f"r{i}", prompt_ids=tuple(range(5, 9 + i % 3)), seed=100 + i, **given)
        for i in range(count)
    ]


def run(main: Any) -> Any:
    """Under virtual time."""
    return Inline().run(main)


def clock() -> InlineClock:
    return Inline().clock()


def change_at(
    opened: Opened, versions: Versions, asked: Sequence[GenerationRequest], policy: InFlight, steps: float
) -> tuple[list[Completion], float]:
    """All asked at once under version 0; version 8 comes after so many steps. What came of it, and when it was in."""

    async def main() -> tuple[list[Completion], float]:
        time = clock()
        engine = opened.engine(versions.store, time)
        await engine.load(versions.publications[0])
        running = asyncio.gather(*map(engine.generate, asked))
        await time.until(steps * TOKEN_S)
        assert await engine.load(versions.publications[1], policy) == versions.publications[1].fingerprint
        loaded = round(time.now() / TOKEN_S, 6)
        return await running, loaded

    done: tuple[list[Completion], float] = run(main())
    return done


def gathered(
    opened: Opened, versions: Versions, asked: Sequence[GenerationRequest], number: int = 0, **options: Any
) -> list[Completion]:
    """All asked at once of an engine that holds one version."""

    async def main() -> list[Completion]:
        engine = opened.engine(versions.store, clock(), **options)
        await engine.load(versions.publications[number])
        return await asyncio.gather(*map(engine.generate, asked))

    made: list[Completion] = run(main())
    return made


ALL = Truncation()
CUTS = (Truncation(top_k=3), Truncation(top_p=0.7), Truncation(min_p=0.1), Truncation(top_k=6, top_p=0.9, min_p=0.02))
