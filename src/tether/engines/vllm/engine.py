"""The engine: who waits is the stream's, what is decoded vLLM's, and weights change between two steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tether.engines.busy import Busy
from tether.engines.holding import Holding
from tether.engines.requests import Servable
from tether.engines.stream import Pace, Stream
from tether.engines.vllm.adapter import Adapter
from tether.engines.vllm.core import Core
from tether.engines.vllm.options import TEMPERATURES, Vllm
from tether.engines.vllm.rows import VllmRows
from tether.engines.vllm.weights import Weights
from tether.errors import DataError, ModelError, ResumeError
from tether.models.loading import LoadedModel
from tether.ports import Clock, EngineCapabilities, GenerationRequest, InFlight, Publication, WeightStore
from tether.records import Completion

if TYPE_CHECKING:
    from torch import Tensor


class VllmEngine:
    """A ``RolloutEngine`` around a vLLM that runs in this process.

    Args:
        core: vLLM, with the model's own weights.
        skeleton: the same model without memory: names, shapes, ids that end a completion.
        options: the table.
        store: where versions come from.
        clock: one step is one ``generate_token``, whatever is read in it.
        adapter: with which ``core`` was opened, and which is published in the place of all weights.
    """

    def __init__(
        self,
        core: Core,
        skeleton: LoadedModel,
        options: Vllm,
        *,
        store: WeightStore,
        clock: Clock,
        adapter: Adapter | None = None,
    ) -> None:
        self._core, self._options = core, options
        self._taken = Weights(skeleton) if adapter is None else adapter
        self._lost = ""
        """Why it holds no whole version any more."""
        self._busy = Busy()
        self._holding = Holding(store, self._put, self._busy)
        self._servable = Servable(
            vocabulary=int(skeleton.model.get_input_embeddings().num_embeddings),
            context=options.context or skeleton.context,
            eos_ids=tuple(skeleton.eos_ids),
            routing=core.routing,
        )
        self._stream = Stream(
            VllmRows(core, self._salt),
            Pace(max_rows=options.max_rows, yield_every=1, least_share=0.0),
            clock=clock,
            version=lambda: self.version,
            busy=self._busy,
        )

    @property
    def capabilities(self) -> EngineCapabilities:
        """Those of its kind, routes if vLLM's model has routers that can be listened to."""
        return replace(self._options.capabilities, routing=self._core.routing is not None)

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 before the first load."""
        return self._holding.version

    @property
    def busy_s(self) -> float:
        """Real seconds of steps and loads so far."""
        return self._busy.seconds

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one completion together with all others that are under way; it joins them between two steps."""
        self._check(request)
        return await self._stream.ask(request)

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order asked, at once: no time passes and nobody else runs.

        What is under way keeps its cache and is not scheduled meanwhile.
        """
        for request in requests:
            self._check(request)
        answers: list[Completion] = []
        with self._busy:
            for start in range(0, len(requests), self._options.max_rows):
                answers += self._answer(requests[start : start + self._options.max_rows], start)
        return answers

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        """Have vLLM replace its weights in place; return the fingerprint of what was received.

        They are fetched, hashed and compared with the model before the first is touched. Should vLLM then fail, the
        engine holds no whole version: it says so, and does nothing any more.
        """
        self._check_whole()
        return await self._holding.load(publication, in_flight, self._stream)

    async def progress(self) -> Mapping[str, Completion]:
        """Tokens so far of all that is under way; one that has ended and is not due yet is whole."""
        return self._stream.progress()

    def in_flight(self) -> None:
        """Nothing: caches and generators of rows are vLLM's own, and ``progress`` tells what can be saved."""
        return None

    def restore(self, flight: Mapping[str, Any]) -> None:
        """Refused: this engine tells no flight."""
        raise ResumeError(
            "generations under way that another engine saved cannot be gone on with by engine 'vllm'; resume with the "
            "engine.kind of the run"
        )

    def _check(self, request: GenerationRequest) -> None:
        self._check_whole()
        self._servable.check(request)
        least, most = TEMPERATURES
        if request.temperature and not least <= request.temperature <= most:
            raise DataError(
                f"vLLM samples at temperature 0 (greedy) or {least:g} .. {most:g}; request {request.id!r} has "
                f"{request.temperature}: ask for one of these"
            )

    def _check_whole(self) -> None:
        if self._lost:
            raise ModelError(f"this engine holds no whole version: {self._lost}; open the engine anew")

    def _salt(self) -> str:
        """Who joins now finds in the prefix cache what this publication computed, and nothing else."""
        held = self._holding.publication
        return "none" if held is None else f"{held.number} {held.fingerprint}"

    def _answer(self, requests: Sequence[GenerationRequest], first: int) -> list[Completion]:
        rows = VllmRows(self._core, self._salt, name=lambda name: f"apart {name}")
        numbered = [_renamed(request, f"{first + i}") for i, request in enumerate(requests)]
        with self._core.apart():
            try:
                rows.join(numbered)
                done = dict[str, Completion]()
                while len(done) < len(numbered):
                    _, ended = rows.advance(self.version, 1)
                    done |= {draft.request.id: draft.completion() for draft in ended}
            finally:
                rows.clear()
        return [done[request.id] for request in numbered]

    def _put(self, publication: Publication, received: Mapping[str, Tensor]) -> None:
        self._taken.check(received)
        try:
            self._taken.put(received, self._core)
            self._core.label(publication.version)
        except Exception as error:
            self._lost = f"vLLM failed while it took version {publication.version} ({type(error).__name__}: {error})"
            raise ModelError(f"{self._lost}; this engine is lost, open it anew") from error


def _renamed(request: GenerationRequest, name: str) -> GenerationRequest:
    """The same under a name of its own: what is asked together may have one name several times."""
    return replace(request, id=name)
