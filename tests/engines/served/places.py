"""An engine at a double, and what is published to it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import torch

from tether.engines.served.engine import ServedEngine
from tether.models.loading import load_model
from tether.placement.inline import FreeClock
from tether.ports import EngineOptions, GenerationRequest, Publication
from tether.records import Completion
from tether.weights.memory import MemoryStore

from .toy import logp as logp_of

MODEL = "tiny-dense"


@functools.cache
def weights() -> dict[str, torch.Tensor]:
    """The model's own."""
    return dict(load_model(MODEL).model.state_dict())


class Place:
    """A store with versions of a small model, and an engine that takes them."""

    def __init__(self, options: EngineOptions) -> None:
        self.store = MemoryStore("float32", keep=9)
        self.weights = {name: t.clone() for name, t in weights().items()}
        self.weights["lm_head.weight"] = self.weights["model.embed_tokens.weight"]
        self.keys: dict[int, float] = {}
        self.engine: Any = options.open(MODEL, store=self.store, clock=FreeClock(), device="cpu")
        assert isinstance(self.engine, ServedEngine)

    def publish(self, version: int) -> Publication:
        """Weights that no other version has."""
        with torch.no_grad():
            self.weights["model.embed_tokens.weight"] += 0.01 * (version + 1)
        self.keys[version] = float(self.weights["model.embed_tokens.weight"].float().sum())
        return self.store.publish(version, self.weights)

    def expected(self, request: GenerationRequest, made: Completion, keep: Sequence[list[int]] | None = None) -> Any:
        """Log-probs of its tokens under the weights that it says, as the toy computes them."""
        context, found = list(request.prompt_ids), []
        for place, (id, version) in enumerate(zip(made.token_ids.tolist(), made.version.tolist(), strict=True)):
            among = None if keep is None else keep[place]
            found.append(logp_of(self.keys[version], context, request.temperature, among)[id])
            context.append(id)
        return np.array(found, np.float32)


def ask(id: str = "a", **options: Any) -> GenerationRequest:
    """A request."""
    return GenerationRequest(
        **{"id": id, "prompt_ids": (5, 6, 7), "seed": len(id), "max_tokens": 30, "temperature": 1.0, **options}
    )


def run(place: Place, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do the work in a loop, and close the engine."""

    async def both() -> Any:
        try:
            return await asyncio.wait_for(work(), 30)
        finally:
            await place.engine.close()

    return asyncio.run(both())


async def grown(place: Place, count: int) -> None:
    """Wait until everything under way has so many tokens."""
    while not (told := await place.engine.progress()) or min(map(len, told.values())) < count:
        await asyncio.sleep(0.002)
