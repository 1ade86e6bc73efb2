"""An engine that is wrong in one way, chosen by name: it acknowledges everything as it should."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tether.engines.torch import Torch, TorchEngine
from tether.models.lora import Lora
from tether.ports import Clock, EngineCapabilities, GenerationRequest, InFlight, Publication, WeightStore
from tether.records import Completion
from tether.registry import ENGINES

from .small import naive_logp


@ENGINES.register("doctored")
@dataclass(frozen=True, kw_only=True)
class Doctored(Torch):
    """The embedded engine with a fault.

    >>> Doctored(fault="stale").dtype
    'bfloat16'
    """

    fault: str = ""
    """A name of ``LOADS`` or ``ANSWERS``."""
    sound_loads: int = 0
    """Loads without the fault, before it begins."""

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> DoctoredEngine:
        inner = super().open(source, store=store, clock=clock, device=device, lora=lora)
        return DoctoredEngine(inner, self, store)


class DoctoredEngine:
    def __init__(self, inner: TorchEngine, options: Doctored, store: WeightStore) -> None:
        self.inner, self.options, self.store = inner, options, store
        self.loads = 0

    @property
    def capabilities(self) -> EngineCapabilities:
        return self.inner.capabilities

    @property
    def version(self) -> int:
        return self.inner.version

    @property
    def is_sound(self) -> bool:
        return self.loads <= self.options.sound_loads

    @property
    def busy_s(self) -> float:
        return self.inner.busy_s

    def in_flight(self) -> Mapping[str, Any] | None:
        return self.inner.in_flight()

    def restore(self, flight: Mapping[str, Any]) -> None:
        self.inner.restore(flight)

    async def progress(self) -> Mapping[str, Completion]:
        return await self.inner.progress()

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        self.loads += 1
        model: Any = self.inner._loaded.model
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        arrived = await self.inner.load(publication, in_flight)
        if not self.is_sound and self.options.fault in LOADS:
            held = LOADS[self.options.fault](before, dict(model.state_dict()))
            model.load_state_dict({name: tensor.clone() for name, tensor in held.items()})
        if not self.is_sound and self.options.fault == "wrong positions":
            model.base_model.rotary_emb.inv_freq *= 0.5
        return "0" * 64 if self.options.fault == "another fingerprint" and not self.is_sound else arrived

    async def generate(self, request: GenerationRequest) -> Completion:
        return self.doctored(request, await self.inner.generate(request))

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        completions = await self.inner.answer(requests)
        return [self.doctored(*pair) for pair in zip(requests, completions, strict=True)]

    def doctored(self, request: GenerationRequest, completion: Completion) -> Completion:
        answer = ANSWERS.get(self.options.fault)
        return completion if answer is None or self.is_sound else answer(self, request, completion)


Weights = dict[str, Tensor]


def stale(before: Weights, after: Weights) -> Weights:
    return before


def first_half(before: Weights, after: Weights) -> Weights:
    names = list(after)
    return {name: after[name] if i < len(names) // 2 else before[name] for i, name in enumerate(names)}


def without_one(before: Weights, after: Weights) -> Weights:
    name = "model.layers.0.self_attn.q_proj.weight"
    return {**after, name: before[name]}


def swapped(before: Weights, after: Weights) -> Weights:
    one, other = next((a, b) for a, b in pairwise(after) if after[a].shape == after[b].shape and "weight" in a)
    return {**after, one: after[other], other: after[one]}


def without_adapter(before: Weights, after: Weights) -> Weights:
    return {name: torch.zeros_like(t) if ".lora_B" in name else t for name, t in after.items()}


def scaled_adapter(before: Weights, after: Weights) -> Weights:
    return {name: 2 * t if ".lora_B" in name else t for name, t in after.items()}


def rounded_to(dtype: torch.dtype) -> Callable[[Weights, Weights], Weights]:
    return lambda before, after: {name: tensor.to(dtype).to(tensor.dtype) for name, tensor in after.items()}


LOADS: dict[str, Callable[[Weights, Weights], Weights]] = {
    "stale": stale,
    "without adapter": without_adapter,
    "scaled adapter": scaled_adapter,
    "first half": first_half,
    "without one": without_one,
    "swapped": swapped,
    "rounded to float8": rounded_to(torch.float8_e4m3fn),
    "rounded to bfloat16": rounded_to(torch.bfloat16),
}


def raw(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    ids = completion.token_ids.tolist()
    return replace(completion, logp=naive_logp(engine.inner._loaded.model, request.prompt_ids, ids).numpy())


def shifted(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    return replace(completion, logp=np.roll(completion.logp, 1))


def old_versions(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    return replace(completion, version=np.maximum(completion.version - 1, 0).astype(np.int32))


def old_cache(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    return replace(completion, cached_version=np.maximum(completion.version - 1, 0).astype(np.int32))


def rounded_numbers(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    return replace(completion, logp=torch.from_numpy(completion.logp).bfloat16().float().numpy())


def one_more_id(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    """As whoever decodes, adds an end and encodes does; it is behind a completion that had ended."""
    names = ("token_ids", "logp", "version", "entropy")
    return replace(completion, **{n: np.append(x := getattr(completion, n), x[-1:]) for n in names})


def one_row_wrong(engine: DoctoredEngine, request: GenerationRequest, completion: Completion) -> Completion:
    wrong = request.id.endswith(("2", "5"))
    return replace(completion, logp=completion.logp - np.float32(0.5)) if wrong else completion


ANSWERS: dict[str, Callable[[DoctoredEngine, GenerationRequest, Completion], Completion]] = {
    "raw": raw,
    "shifted": shifted,
    "rounded numbers": rounded_numbers,
    "one more id": one_more_id,
    "one row wrong": one_row_wrong,
    "old versions": old_versions,
    "old cache": old_cache,
}
