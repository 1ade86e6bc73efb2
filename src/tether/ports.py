"""Protocols of the outside world, and the records that pass through them. No torch at import.

Whatever generates text, holds weights, judges answers or tells the time stands behind one of these; the pipeline
knows nothing else about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from tether.records import Answer, Completion, Grade, Prompt, Truncation

TRIAL = -1
"""Version of what is published before version 0 to see that it arrives: weights that nobody trains on."""
InFlight = Literal["finish", "keep", "recompute", "restart"]
"""What happens to completions under way when new weights are loaded: they ``finish`` before; they go on under the new
weights and ``keep`` their key-value cache, or ``recompute`` it; or they ``restart`` from their prompts."""

if TYPE_CHECKING:
    from torch import Tensor

    from tether.models.lora import Lora


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One completion to sample."""

    id: str
    prompt_ids: tuple[int, ...]
    seed: int
    """With the position, the only source of randomness: same seed, same weights, same sample, whatever the batch."""
    max_tokens: int
    temperature: float
    """Divides the logits; 0 means greedy."""
    truncation: Truncation = Truncation()
    """What it is sampled among."""
    alternatives: int = 0
    """How many of the most probable ids to report with each token."""
    routing: bool = False
    """Whether to report the experts that each token went through."""
    kept: bool = False
    """Whether to report what each token was sampled among, where that is not the whole vocabulary."""
    so_far: Completion | None = None
    """What was sampled of it before it was interrupted. The completion begins with it and goes on as if it had not been
    interrupted: its cache is computed anew, its numbers are drawn by position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCapabilities:
    """What an engine can do and report; a recipe that asks for more is refused before the start."""

    logp: Literal["processed", "raw"]
    """``processed``: of the distribution sampled from, temperature and truncation included. ``raw``: of the model."""
    token_versions: bool
    """Whether it knows which weights made each token."""
    entropy: bool = False
    """Whether it reports the entropy of each token's distribution."""
    alternatives: bool = False
    """Whether it reports the most probable ids of each token."""
    routing: bool = False
    """Whether it reports the experts of each token, of a model that has some."""
    truncation: bool = False
    """Whether it samples among some ids only, if asked: ``top_k``, ``top_p``, ``min_p``."""
    kept: bool = False
    """Whether it reports what each token was then sampled among."""
    in_flight: tuple[InFlight, ...] = ("finish",)
    """What it can do with completions under way when new weights come."""
    lora: bool = False
    """Whether it takes an adapter in the place of all weights."""
    seeded: bool = False
    """Whether a sample depends on its request's seed, and not on what else is sampled."""
    virtual_time: bool = False
    """Whether it can live under placement ``inline``."""
    cpu: bool = False
    """Whether it runs without a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A version that is whole and may be loaded."""

    version: int
    fingerprint: str
    """Hash over names, shapes and bytes of every tensor, in the published dtype."""
    num_bytes: int
    number: int = 0
    """Publications are numbered one by one from 0, versions skip numbers: an engine that misses one notices."""
    where: Any = None
    """Where a store finds it from another process; ``None`` where it needs no telling."""


@runtime_checkable
class RolloutEngine(Protocol):
    """Samples completions and stamps every token with the version that made it."""

    @property
    def capabilities(self) -> EngineCapabilities:
        """What it can report."""
        ...

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 before the first load."""
        ...

    @property
    def busy_s(self) -> float:
        """Real seconds that it has worked so far; it never falls."""
        ...

    async def generate(self, request: GenerationRequest) -> Completion:
        """Sample one completion, together with whatever else is under way.

        Comes back early, with ``finish = "interrupted"``, where a ``load`` says ``restart``. A caller that is cancelled
        ends its completion. After ``restore``, a request that was under way then goes on where it stood.
        """
        ...

    async def answer(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """Sample one completion a request, in the order asked, apart from what is under way: for looking at an engine.

        Under virtual time it takes none, and what is under way ends as it would have ended without it.
        """
        ...

    async def load(self, publication: Publication, in_flight: InFlight = "finish") -> str:
        """Take a version from the weight store, whole or not at all; return the fingerprint of what was received.

        A publication that does not follow the one it holds is refused; the first may have any number, and the one that
        it holds may come again. Returns once no token is sampled under the weights before.
        """
        ...

    async def progress(self) -> Mapping[str, Completion]:
        """What was sampled so far of every completion under way, by request id: with ``finish = "interrupted"``, or as
        it ended if its caller is about to get it."""
        ...

    def in_flight(self) -> Mapping[str, Any] | None:
        """Everything there is of the generations under way, as plain values and tensors, for ``restore``; ``None`` if
        nothing can be told so exactly, and then ``progress`` is what can be saved."""
        ...

    def restore(self, flight: Mapping[str, Any]) -> None:
        """Take up what ``in_flight`` told, before anything is asked: to the last bit once the same requests come."""
        ...


@runtime_checkable
class EngineOptions(Protocol):
    """The ``[engine]`` table, bound: what every kind of engine can be asked, and how to open one."""

    @property
    def dtype(self) -> str:
        """Of its weights, hence of what is published to it."""
        ...

    @property
    def temperature(self) -> float:
        """Of the sampling."""
        ...

    @property
    def max_tokens(self) -> int:
        """Most tokens of a completion."""
        ...

    @property
    def max_rows(self) -> int:
        """Completions that it decodes together."""
        ...

    @property
    def truncation(self) -> Truncation:
        """What rollouts are sampled among."""
        ...

    def check(self) -> None:
        """Raise ``ConfigError`` if something without which it cannot be opened is not set."""
        ...

    @property
    def capabilities(self) -> EngineCapabilities:
        """What such an engine can do at most: routes, for one, are reported of a model that has routers."""
        ...

    def open(
        self, source: str, *, store: WeightStore, clock: Clock, device: str, lora: Lora | None = None
    ) -> RolloutEngine:
        """An engine with a model's shape; it loads weights from the store. With ``lora`` it holds the model's own and
        loads those of an adapter."""
        ...


@runtime_checkable
class WeightStore(Protocol):
    """Where versions travel; a version is whole or absent."""

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> Publication:
        """Copy the weights, in the published dtype, and make them visible at once."""
        ...

    def fetch(self, publication: Publication) -> Mapping[str, Tensor]:
        """The tensors of a publication; an error if it is gone."""
        ...


@runtime_checkable
class Reward(Protocol):
    """Judges one answer.

    One that can judge many in one call, and would rather, says so by ``gathers`` and has a method ``judge_all(prompts,
    answers)``, which gives a result each, in order; an exception among them is what came of that answer alone. One
    that says ``needs_end`` is not asked about answers that were cut.
    """

    def __call__(self, prompt: Prompt, answer: Answer) -> float | Grade:
        """A finite number, higher is better; or that with how it came about."""
        ...


@runtime_checkable
class Clock(Protocol):
    """Time as the pipeline sees it: virtual under ``inline``, real elsewhere."""

    def now(self) -> float:
        """Seconds since the run began."""
        ...

    async def spend(self, what: str, amount: float = 1.0) -> None:
        """Let ``amount`` units of work of a kind take their time: a cost in virtual time, nothing in real time."""
        ...

    def due(self, what: str, amount: float = 1.0) -> float:
        """The moment at which work of a kind that begins now is done, for ``until``."""
        ...

    async def until(self, moment_s: float) -> None:
        """Wait for a moment; let others run at least once."""
        ...

    async def quiet(self, *, last: bool = False) -> None:
        """Wait until everybody else waits too: for time to pass, or for this task; ``last``: after all others who wait
        for that. In real time: let others run."""
        ...

    def free(self) -> AbstractContextManager[None]:
        """What this task does inside costs no virtual time. In real time: no difference."""
        ...
