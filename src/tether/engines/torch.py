"""The embedded engine: samples with a transformers model in this process, beside the trainer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch as th
from torch import Tensor

from tether.engines.attention import use_grouped_attention
from tether.engines.decoding import RowBatch
from tether.engines.rows import Decodable
from tether.errors import ConfigError, DataError, ModelError
from tether.models.loading import DTYPES, load_model
from tether.models.lora import Lora, adapt, check_base, published
from tether.models.routers import routing_of
from tether.ports import Clock, EngineCapabilities, GenerationRequest, Publication, WeightStore
from tether.records import Completion
from tether.registry import ENGINES


@ENGINES.register("torch")
@dataclass(frozen=True, kw_only=True)
class Torch:
    """Batched sampling with a key-value cache, in this process.

    Its own copy of the model, in its own number format, decodes ``max_rows`` completions together and gives way to
    the other parts every ``yield_every`` tokens; weights may change there, inside a completion (not in the regimes of
    this version, which load only between generations). The cache is kept
    then: a token's version is that of the weights that made its logits, the cached keys before it may be older.

    >>> Torch(max_tokens=16).dtype
    'bfloat16'
    >>> Torch(temperature=-1.0)
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.temperature must be finite and at least 0 (0 is greedy); got -1.0
    """

    dtype: str = "bfloat16"
    """Number format of its weights and arithmetic: bfloat16 or float32. Another one than the trainer's gives
    a real mismatch between engine and trainer."""
    temperature: float = 1.0
    """Divides the logits when rollouts are sampled."""
    max_tokens: int = 32
    """Most tokens of a completion; one that reaches it ends with ``finish = "length"``."""
    max_rows: int = 512
    """Most completions decoded together; more are decoded one lot after the other."""
    yield_every: int = 8
    """Tokens decoded between two moments at which weights may change."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"engine.dtype must be one of {', '.join(sorted(DTYPES))}; got {self.dtype!r}")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(f"engine.temperature must be finite and at least 0 (0 is greedy); got {self.temperature}")
        if self.temperature and not 1e-6 <= self.temperature <= 1e3:
            raise ConfigError(f"engine.temperature must be 0 (greedy) or lie in 1e-6 .. 1e3; got {self.temperature}")
        for name, most in (("max_tokens", 10**7), ("max_rows", 10**6), ("yield_every", 10**7)):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"engine.{name} must be at least 1; got {value}")
            if value > most:
                raise ConfigError(f"engine.{name} must be at most {most}; got {value}")

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> TorchEngine:
        """Load the model of ``source``; its weights have version -1 until the first ``load``."""
        loaded = load_model(source, dtype=self.dtype, device=device)
        if lora is not None:
            adapt(loaded.model, lora, dtype=DTYPES[self.dtype])
        return TorchEngine(loaded, self, store=store, clock=clock)


@dataclass(slots=True)
class _Flight:
    """A generation under way."""

    done: dict[int, Completion] = field(default_factory=dict)
    """By the number of the request."""
    num_lots: int = 0
    """Lots of rows that are done."""
    batch: RowBatch | None = None
    """The lot being decoded."""
    until_s: float | None = None
    """When the tokens decoded last are due."""


class TorchEngine:
    """A ``RolloutEngine`` around a model that is ready: loaded, on its device, in the engine's number format."""

    def __init__(self, loaded: Decodable, options: Torch, *, store: WeightStore, clock: Clock) -> None:
        self._loaded = loaded
        self._options = options
        self._store = store
        self._clock = clock
        self._version = -1
        self._flights: list[_Flight] = []
        loaded.model.eval().requires_grad_(False)
        use_grouped_attention(loaded.model)
        self._routing = routing_of(loaded.model)

    @property
    def capabilities(self) -> EngineCapabilities:
        """Everything: it sees the logits, and the routers if the model has some of a form that is known."""
        routing = self._routing is not None
        return EngineCapabilities(logp="processed", entropy=True, top_k=True, token_versions=True, routing=routing)

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 before the first load."""
        return self._version

    async def generate(
        self, requests: Sequence[GenerationRequest], flight: Mapping[str, Any] | None = None
    ) -> list[Completion]:
        """Sample one completion a request, in the order asked; rows of like length are decoded together.

        With a ``flight`` of the same requests it goes on, to the last bit, from where that stood.
        """
        vocabulary = int(self._loaded.model.get_input_embeddings().num_embeddings)
        for request in requests:
            self._check(request, vocabulary)
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids))
        lots = [order[start : start + self._options.max_rows] for start in range(0, len(order), self._options.max_rows)]
        under_way = _Flight() if flight is None else self._reopened(flight, requests, lots)
        self._flights.append(under_way)
        try:
            for picked in lots[under_way.num_lots :]:
                if under_way.batch is None:
                    under_way.batch = RowBatch(self._loaded, [requests[i] for i in picked])
                completions = await self._decode(under_way, under_way.batch)
                under_way.done |= zip(picked, completions, strict=True)
                under_way.num_lots += 1
                under_way.batch = None
        finally:
            self._flights.remove(under_way)
        return [under_way.done[i] for i in range(len(requests))]

    def in_flight(self) -> Mapping[str, Any] | None:
        """Tokens so far, versions, cache and composition of the one generation under way."""
        if len(self._flights) != 1 or (flight := self._flights[0]).batch is None:
            return None
        lots = {"num_lots": flight.num_lots, "done": flight.done}
        return {**lots, "until_s": flight.until_s, "batch": flight.batch.state()}

    async def load(self, publication: Publication) -> str:
        """Copy a published version into the model, whole or not at all; return the fingerprint of what was received.

        There is no point inside at which other parts run, so no token sees half of it.
        """
        from tether.models.fingerprint import fingerprint

        received = self._store.fetch(publication)
        arrived = fingerprint(received)
        if arrived != publication.fingerprint:
            raise ModelError(
                f"received weights must be those of the publication; version {publication.version} was announced as "
                f"{publication.fingerprint} and arrived as {arrived}: the engine keeps version {self._version}"
            )
        check_base(self._loaded.model, received)
        targets = self._match(received)
        with th.no_grad():
            for name, target in targets.items():
                target.copy_(received[name])
        self._version = publication.version
        return arrived

    async def _decode(self, flight: _Flight, batch: RowBatch) -> list[Completion]:
        if flight.until_s is not None:  # it goes on from a checkpoint, inside a block of tokens
            await self._clock.until(flight.until_s)
        while not batch.is_finished:
            steps = batch.advance(self._version, self._options.yield_every)
            flight.until_s = self._clock.due("generate_token", float(steps))
            await self._clock.until(flight.until_s)
        flight.until_s = None
        return batch.completions()

    def _reopened(
        self, state: Mapping[str, Any], requests: Sequence[GenerationRequest], lots: Sequence[Sequence[int]]
    ) -> _Flight:
        picked = lots[state["num_lots"]]
        batch = RowBatch.restore(self._loaded, [requests[i] for i in picked], state["batch"])
        return _Flight(dict(state["done"]), state["num_lots"], batch, state["until_s"])

    def _check(self, request: GenerationRequest, vocabulary: int) -> None:
        """Refuse a request that cannot be served, before any work."""
        name, length = f"request {request.id!r}", len(request.prompt_ids)
        if not length:
            raise DataError(f"a prompt must have at least one token; {name} has none")
        lowest, highest = min(request.prompt_ids), max(request.prompt_ids)
        if lowest < 0 or highest >= vocabulary:
            raise DataError(
                f"prompt ids must lie in 0 .. {vocabulary - 1}; {name} has {lowest} .. {highest}: "
                "encode it with the tokenizer of this model"
            )
        if request.max_tokens < 1:
            raise DataError(f"max_tokens must be at least 1; {name} asks for {request.max_tokens}")
        if length + request.max_tokens > self._loaded.context:
            raise DataError(
                f"prompt and completion must fit the context of {self._loaded.context} tokens; {name} has {length} + "
                f"{request.max_tokens}: shorten the prompt or lower engine.max_tokens"
            )
        if not (math.isfinite(request.temperature) and request.temperature >= 0):
            raise DataError(f"temperature must be finite and at least 0; {name} has {request.temperature}")
        if not 0 <= request.top_k <= vocabulary:
            raise DataError(f"top_k must lie in 0 .. {vocabulary}; {name} asks for {request.top_k}")
        if request.routing and self._routing is None:
            raise DataError(
                f"routes are reported of a model that has routers of a form that is known; {name} asks for them: "
                "take a mixture of experts, or no replay"
            )

    def _match(self, received: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every received name with the tensor it goes to; an error unless all tensors are met, in their shape.

        Tied weights are one tensor with several names: one of them is enough, and all that come must agree.
        """
        own = published(self._loaded.model)
        names: dict[int, list[str]] = {}
        for name, tensor in own.items():
            names.setdefault(id(tensor), []).append(name)
        wrong = [f"unexpected {name!r}" for name in received if name not in own]
        wrong += [f"missing {tied[0]!r}" for tied in names.values() if not any(n in received for n in tied)]
        wrong += [
            f"{name!r} has shape {tuple(tensor.shape)} instead of {tuple(own[name].shape)}"
            for name, tensor in received.items()
            if name in own and tensor.shape != own[name].shape
        ]
        for tied in names.values():
            first, *rest = [n for n in tied if n in received] or [""]
            wrong += [f"{first!r} and {n!r} are tied but differ" for n in rest if not _same(received, first, n)]
        if wrong:
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise ModelError(
                f"published weights must fit the engine's model; {'; '.join(wrong[:5])}{more}: "
                "publish the state dict of the model the engine was opened with"
            )
        return {name: own[name] for name in received}


def _same(tensors: Mapping[str, Tensor], one: str, other: str) -> bool:
    return tensors[one] is tensors[other] or th.equal(tensors[one], tensors[other])
