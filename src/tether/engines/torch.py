"""The embedded engine: samples with a transformers model in this process, beside the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch as th
from torch import Tensor

from tether.engines.attention import use_grouped_attention
from tether.engines.busy import Busy
from tether.engines.decoding import RowBatch
from tether.engines.fitting import check_fits
from tether.engines.holding import Holding
from tether.engines.options import SamplingOptions
from tether.engines.packed import pack_linear_layers
from tether.engines.requests import Servable
from tether.engines.rows import Decodable
from tether.engines.stream import Pace, Stream
from tether.models.loading import DTYPES, load_model
from tether.models.lora import Lora, adapt, check_base, published
from tether.models.routers import find_routers, routing_of
from tether.ports import Clock, EngineCapabilities, GenerationRequest, InFlight, Publication, WeightStore
from tether.records import Completion
from tether.registry import ENGINES

_LEAST_SHARE = 1 / 4
"""Of the rows, see ``Pace``. Whoever joins costs a pass of their own and a copy of the cache: 64 rows of mixed limits
took 0.85 of the processor time that they took with every free row filled at once."""


@ENGINES.register("torch")
@dataclass(frozen=True, kw_only=True)
class Torch(SamplingOptions):
    """Batched sampling with a key-value cache, in this process.

    Its own copy of the model, in its own number format, decodes up to ``max_rows`` completions together, which join
    and leave between blocks of ``yield_every`` tokens. There it gives way to the other parts, and weights may change
    inside a completion; its cache is kept then, or computed anew, as the load says. A token's version is that of the
    weights that made its logits; the cached keys that it was sampled over may be older, and ``cached_version`` says so.

    >>> Torch(max_tokens=16).dtype
    'bfloat16'
    >>> Torch(yield_every=0)
    Traceback (most recent call last):
    tether.errors.ConfigError: engine.yield_every must be at least 1; got 0
    """

    yield_every: int = 8
    """Tokens decoded between two moments at which weights may change and completions join."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_counts(yield_every=10**7)

    @property
    def capabilities(self) -> EngineCapabilities:
        """Everything: it sees the logits."""
        return EngineCapabilities(
            logp="processed",
            token_versions=True,
            entropy=True,
            alternatives=True,
            routing=True,
            truncation=True,
            kept=True,
            in_flight=("finish", "keep", "recompute", "restart"),
            lora=True,
            seeded=True,
            virtual_time=True,
            cpu=True,
        )

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> TorchEngine:
        """Load the model of ``source``; its weights have version -1 until the first ``load``."""
        loaded = load_model(source, dtype=self.dtype, device=device)
        if lora is not None:
            adapt(loaded.model, lora, dtype=DTYPES[self.dtype])
        return TorchEngine(loaded, self, store=store, clock=clock)


class TorchEngine:
    """A ``RolloutEngine`` around a model that is ready: loaded, on its device, in the engine's number format."""

    def __init__(self, loaded: Decodable, options: Torch, *, store: WeightStore, clock: Clock) -> None:
        self._loaded = loaded
        self._options = options
        self._busy = Busy()
        self._holding = Holding(store, self._put, self._busy)
        loaded.model.eval().requires_grad_(False)
        use_grouped_attention(loaded.model)
        pack_linear_layers(loaded.model)
        routing = routing_of(loaded.model)
        self._servable = Servable(
            vocabulary=int(loaded.model.get_input_embeddings().num_embeddings),
            context=loaded.context,
            eos_ids=tuple(loaded.eos_ids),
            routing=routing,
        )
        self._routers = None if routing is None else find_routers(loaded.model)
        self._rows = RowBatch(loaded, self._routers)
        self._stream = Stream(
            self._rows,
            Pace(max_rows=options.max_rows, yield_every=options.yield_every, least_share=_LEAST_SHARE),
            clock=clock,
            version=lambda: self.version,
            busy=self._busy,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """Everything, routes if the model has routers of a form that is known."""
        return replace(self._options.capabilities, routing=self._servable.routing is not None)

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 before the first load."""
        return self._holding.version

    @property
    def busy_s(self) -> float:
        """Real seconds of forward passes and loads so far."""
        return self._busy.seconds

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one completion together with all others that are under way; it joins them between two blocks.

        An error ends all that are under way, and every caller hears of it.
        """
        self._servable.check(request)
        return await self._stream.ask(request)

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order asked, at once: no time passes and nobody else runs.

        Rows of like length are decoded together; those under way do not notice.
        """
        for request in requests:
            self._servable.check(request)
        order = sorted(range(len(requests)), key=lambda i: len(requests[i].prompt_ids))
        done: dict[int, Completion] = {}
        with self._busy:
            for start in range(0, len(order), self._options.max_rows):
                picked = order[start : start + self._options.max_rows]
                batch = RowBatch.of(self._loaded, [requests[i] for i in picked], self._routers)
                drafts = batch.drafts
                while batch.drafts:
                    batch.advance(self.version, self._options.yield_every)
                done |= {i: draft.completion() for i, draft in zip(picked, drafts, strict=True)}
        return [done[i] for i in range(len(requests))]

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        """Copy a published version into the model, whole or not at all; return the fingerprint of what was received."""
        return await self._holding.load(publication, in_flight, self._stream)

    async def progress(self) -> Mapping[str, Completion]:
        """Tokens so far of all that is under way; one that has ended and is not due yet is whole."""
        return self._stream.progress()

    def in_flight(self) -> Mapping[str, Any]:
        """Rows with their caches, who waits for one, and when the last block is due."""
        return {**self._stream.state(), "batch": self._rows.state()}

    def restore(self, flight: Mapping[str, Any]) -> None:
        """Take up a flight; it goes on once every request of it has come again."""
        self._rows.restore(flight["batch"])
        self._stream.restore(flight)

    def _put(self, publication: Publication, received: Mapping[str, Tensor]) -> None:
        check_base(self._loaded.model, received)
        own = published(self._loaded.model)
        check_fits(own, received)
        with th.no_grad():
            for name, tensor in received.items():
                own[name].copy_(tensor)
