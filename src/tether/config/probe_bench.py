"""The two sides of a probe: an engine that samples, and the trainer that computes the same tokens, at equal weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Final

import numpy as np

from tether.errors import ModelError, NonFiniteError
from tether.models.loading import DTYPES, LoadedModel
from tether.models.policy import Policy
from tether.pipeline.answers import Drift, check_versions, drifts_of
from tether.pipeline.packing import check_finite
from tether.pipeline.rollouts import Sampling, ask
from tether.pipeline.scoring import Logps, Scorer
from tether.placement.inline import FreeClock
from tether.ports import EngineCapabilities, EngineOptions, GenerationRequest, RolloutEngine
from tether.records import Experts, Prompt, Rollout
from tether.replay.routing import Routing
from tether.replay.support import Support
from tether.weights.memory import MemoryStore

LOT: Final = 128
"""About so many responses are sampled, and scored, between two reports of progress."""
TOKEN_BUDGET: Final = 16384
"""Padded tokens of one forward pass of the trainer."""

Told = Callable[[str, int, int], None]
"""Hears what is being done, how many responses of it are done, and of how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What an engine made of some prompts."""

    rollouts: tuple[Rollout, ...]
    can: EngineCapabilities
    """Of the engine once it is open."""
    drifts: tuple[Drift, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A model, the trainer's view of it, and prompts; its weights become those that an engine was given."""

    source: str
    loaded: LoadedModel
    policy: Policy
    prompts: Sequence[Prompt]
    seed: int
    completions: int
    """Of each prompt."""
    device: str
    told: Told

    def sample(self, options: EngineOptions, count: int, *, what: str = "sampling") -> Sampled:
        """Have an engine, opened for this, answer the first ``count`` prompts.

        The model is published to the engine through a store, as in a run, and then takes what the store holds: the
        weights rounded to the engine's format.
        """
        return asyncio.run(self._sample(options, self.prompts[:count], what))

    def score(
        self,
        rollouts: Sequence[Rollout],
        options: EngineOptions,
        *,
        dtype: str,
        replays: Sequence[str] = (),
        what: str = "computing",
    ) -> Logps:
        """``[T]`` the trainer's log-probs of sampled tokens, computed in ``dtype``, with these replays."""
        scorer = self._scorer(options.temperature, replays)
        own = next(self.policy.model.parameters()).dtype
        weights = None if DTYPES[dtype] == own else self.loaded.model.state_dict()
        logp: Logps = np.concatenate(
            [scorer(lot, weights, None if weights is None else DTYPES[dtype]) for lot in self._lots(rollouts, what)]
        )
        if not np.isfinite(logp).all():
            raise NonFiniteError(
                f"log-probs of the trainer must be finite to be compared; {int((~np.isfinite(logp)).sum())} of "
                f"{len(logp)} are not: look at the model's weights"
            )
        return logp

    def untempered(self, rollouts: Sequence[Rollout], dtype: str) -> Logps:
        """``[T]`` the trainer's log-probs before temperature and truncation."""
        weights = self.loaded.model.state_dict()
        return Scorer(self.policy, TOKEN_BUDGET, 1.0)(rollouts, weights, DTYPES[dtype])

    def own_routes(self, rollouts: Sequence[Rollout], options: EngineOptions) -> dict[str, Experts]:
        """What the trainer's routers choose by themselves."""
        scorer = self._scorer(options.temperature, ())
        lots = self._lots(rollouts, "routing")
        return {name: own for lot in lots for name, own in scorer.own_routes(lot).items()}

    def _scorer(self, temperature: float, replays: Sequence[str]) -> Scorer:
        routing = Routing() if "routing" in replays else None
        support = Support() if "support" in replays else None
        return Scorer(self.policy, TOKEN_BUDGET, temperature, routing, support)

    async def _sample(self, options: EngineOptions, prompts: Sequence[Prompt], what: str) -> Sampled:
        store = MemoryStore(options.dtype, keep=1)
        engine = options.open(self.source, store=store, clock=FreeClock(), device=self.device)
        try:
            publication = store.publish(0, self.loaded.model.state_dict())
            received = await engine.load(publication)
            if received != publication.fingerprint:
                raise ModelError(
                    f"an engine must acknowledge what was published, {publication.fingerprint[:12]}; this one says "
                    f"{received[:12]}: what arrived is not what was sent"
                )
            self.loaded.model.load_state_dict(store.fetch(publication))
            pairs = await self._answers(engine, options, prompts, what)
            rollouts = tuple(rollout for _, rollout in pairs)
            if engine.capabilities.token_versions:
                check_versions(rollouts, publication)
            drifts = tuple(drifts_of(pairs, self.loaded.eos_ids))
            return Sampled(rollouts=rollouts, can=engine.capabilities, drifts=drifts)
        finally:
            await _close(engine)

    async def _answers(
        self, engine: RolloutEngine, options: EngineOptions, prompts: Sequence[Prompt], what: str
    ) -> list[tuple[GenerationRequest, Rollout]]:
        sampling = Sampling(
            seed=self.seed,
            group_size=self.completions,
            temperature=options.temperature,
            max_tokens=options.max_tokens,
            routing=engine.capabilities.routing and self.policy.unroutable_because == "",
            truncation=options.truncation,
            kept=engine.capabilities.kept and not options.truncation.is_none,
        )
        asked = [(r, p) for i, p in enumerate(prompts) for r in ask(i, p, sampling, 0.0).requests]
        at_once = max(1, LOT // self.completions) * self.completions
        pairs: list[tuple[GenerationRequest, Rollout]] = []
        self.told(what, 0, len(asked))
        for start in range(0, len(asked), at_once):
            lot = asked[start : start + at_once]
            completions = await engine.answer([request for request, _ in lot])
            for (request, prompt), completion in zip(lot, completions, strict=True):
                rollout = Rollout(
                    id=request.id,
                    prompt=prompt,
                    completion=completion,
                    text="",
                    reward=0.0,
                    started_s=0.0,
                    finished_s=0.0,
                )
                check_finite(rollout)
                pairs.append((request, rollout))
            self.told(what, min(len(asked), start + at_once), len(asked))
        return pairs

    def _lots(self, rollouts: Sequence[Rollout], what: str) -> Iterator[Sequence[Rollout]]:
        """Some rollouts after the others; progress is told as each lot has been used."""
        for start in range(0, len(rollouts), LOT):
            self.told(what, start, len(rollouts))
            yield rollouts[start : start + LOT]
        self.told(what, len(rollouts), len(rollouts))


async def _close(engine: RolloutEngine) -> None:
    """Let go of what the engine holds outside of this process's memory, if anything."""
    close = getattr(engine, "close", None)
    if close is not None and isawaitable(closing := close()):
        await closing
