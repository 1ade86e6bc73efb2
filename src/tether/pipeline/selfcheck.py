"""The questions that an engine answers after each load, and what follows from its answers.

It samples a few fixed prompts as it samples for training; the trainer scores the same tokens. Anything that stands
between the weights that were published and the numbers that arrive shows here: a load that was acknowledged but did
not take effect, or in part; another number format, model or temperature; a cache that outlived the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tether.errors import SelfCheckError
from tether.pipeline.agreement import LEAST_PROGRESS, Agreement, CheckOptions, distance
from tether.pipeline.answers import check_drift, check_versions
from tether.pipeline.learner import Learner
from tether.pipeline.packing import check_finite
from tether.pipeline.rollouts import Sampling, seed_of
from tether.pipeline.routing import rerouted_share
from tether.ports import TRIAL, GenerationRequest, Publication, RolloutEngine
from tether.records import Completion, Metric, Metrics, Prompt, Rollout, Truncation

SAMPLES = 4
"""Answers to each prompt."""
GLANCE = (4, 4)
"""Most prompts, and tokens of an answer, of the glance that comes before a close look."""
SEED_PLACE = -2
"""In the run's tree of seeds; groups have places from 0 on."""
PARTIAL = "It may have taken a part of the tensors, or answer in part from a cache that outlived the load"
OF_EACH = ("probe/distance", "probe/p95", "probe/tail_fraction")
"""Metrics that each of several engines has for itself, under its name."""
NEARER = 0.5
"""Of the distance: so much nearer to log-probs before the temperature the engine's must be to be called raw."""
NO_ADAPTER = (
    "This was the trial of an adapter that makes a difference, before training. The engine may answer with its base "
    "alone: look whether its list of adapters holds one after a load, whether requests name it, and whether it scales "
    "it by model.lora_alpha / model.lora_rank and puts it on the layers of model.lora_targets"
)
NUM_MASKED = 8
"""Answers that the check of masks is made with; it costs two backward passes, once."""


@dataclass(slots=True, kw_only=True)
class Probe:
    """Asks the engine and the learner about the same tokens; raises ``SelfCheckError`` where they disagree."""

    options: CheckOptions
    learner: Learner
    prompts: Callable[[int], Prompt]
    """Of the training split: the first few are asked, and not trained on."""
    sampling: Sampling
    dtypes: tuple[str, str]
    """Of the engine and of the trainer."""
    eos_ids: frozenset[int] = frozenset()
    """Ids that end a completion."""
    is_several: bool = False
    """Whether there are several engines, each with figures of its own in the journal."""
    _known: set[str] = field(init=False, default_factory=set)
    """Engines that had a close look."""

    async def __call__(self, name: str, engine: RolloutEngine, publication: Publication) -> Metrics:
        """Check what an engine makes of a publication that it has just loaded; what was measured, for the journal.

        A glance at few tokens is enough where they agree so well that no floor need be measured; else, and at the first
        load of each engine, a close look decides.
        """
        if not self.options.prompts:
            return {}
        if name in self._known:
            size = min(GLANCE[0], self.options.prompts), GLANCE[1]
            rollouts, agreement = await self._look(engine, publication, size, formats=False)
            if agreement.fault() is None:
                return self._measured(name, rollouts, agreement, is_close=False)
        size = self.options.prompts, self.options.tokens
        rollouts, agreement = await self._look(engine, publication, size, formats=True)
        if (fault := agreement.fault()) is not None:
            check, numbers = fault
            way_out = await self._way_out(check, agreement, rollouts, publication)
            raise _failure(check, publication, f"{numbers}. {way_out}".rstrip())
        if publication.version == TRIAL:
            return {}
        if not self._known:
            await self.learner.check_masks(rollouts[:NUM_MASKED])
        self._known.add(name)
        return self._measured(name, rollouts, agreement, is_close=True)

    async def _look(
        self, engine: RolloutEngine, publication: Publication, size: tuple[int, int], *, formats: bool
    ) -> tuple[list[Rollout], Agreement]:
        """Have the same tokens, of so many prompts and so many an answer, sampled by the engine and scored by the
        learner."""
        num_prompts, num_tokens = size
        prompts = [self.prompts(index) for index in range(num_prompts) for _ in range(SAMPLES)]
        requests = [self._request(number, prompt, num_tokens) for number, prompt in enumerate(prompts)]
        completions = await engine.answer(requests)  # costs the run nothing: it ends as it would have ended unwatched
        rollouts = [_rollout(*pair) for pair in zip(requests, prompts, completions, strict=True)]
        check_drift(list(zip(requests, rollouts, strict=True)), self.eos_ids)
        check_versions(rollouts, publication)
        agreement = Agreement(
            engine=np.concatenate([c.logp for c in completions]),
            scores=await self.learner.score(rollouts, publication, self.sampling.temperature, formats=formats),
            dtypes=self.dtypes,
            tolerance=self.options.tolerance,
            lengths=tuple(len(c) for c in completions),
        )
        return rollouts, agreement

    def _measured(self, name: str, rollouts: Sequence[Rollout], agreement: Agreement, *, is_close: bool) -> Metrics:
        """Of all engines together, and of this one in figures of its own where there are several; of its routes
        always, for one of several may be of another kind."""
        metrics = agreement.metrics()
        own = {f"{key}/{name}": metrics[key] for key in OF_EACH} if self.is_several else {}
        if (chosen := agreement.scores.own_routes) is not None:
            share, num_pairs = rerouted_share(rollouts, chosen)
            if num_pairs:
                own[f"probe/rerouted_share/{name}"] = Metric(share, "mean", float(num_pairs))
        return {**metrics, **own, "probe/close_looks": Metric(float(is_close), "sum")}

    def _request(self, number: int, prompt: Prompt, num_tokens: int) -> GenerationRequest:
        return GenerationRequest(
            id=f"probe/{number}",
            prompt_ids=prompt.token_ids,
            seed=seed_of(self.sampling.seed, SEED_PLACE, number),
            max_tokens=min(num_tokens, self.options.tokens, self.sampling.max_tokens),
            temperature=self.sampling.temperature,
            routing=self.sampling.routing,
            truncation=self.sampling.truncation if self.sampling.kept else Truncation(),  # else all d were off by it
            kept=self.sampling.kept,
        )

    async def _way_out(
        self, name: str, agreement: Agreement, rollouts: Sequence[Rollout], publication: Publication
    ) -> str:
        """What the numbers look like, or where to look."""
        if publication.version == TRIAL:
            return NO_ADAPTER
        previous = agreement.scores.previous
        if name in ("precision", "alignment"):
            return ""
        if name == "spread":
            return (
                "A few rows or places are computed otherwise than the rest: look at the engine's caches, at chunks and "
                "padding; tether probe splits |d| by place and probability, and tries what removes it"
            )
        if name == "ratio":
            return (
                "What is published is not what is trained: try trainer.dtype = float32; if it stays, please report it "
                "with this run"
            )
        stays = agreement.progress < LEAST_PROGRESS / 2 if name == "nearest" else agreement.allows(previous)
        if stays:
            return (
                "It still answers as the version before: its load does not reach the model that samples, or a cache of "
                "prompts outlives a load; reset the engine's prefix cache when weights change"
            )
        if name == "nearest":
            return PARTIAL
        if self.sampling.temperature != 1.0:
            untempered = await self.learner.score(rollouts, publication, 1.0, formats=False)
            if distance(untempered.published, agreement.engine) < NEARER * agreement.apart:
                return (
                    "Its log-probs are those before the temperature; have it report those of the distribution it "
                    "samples from (processed), or set engine.temperature = 1"
                )
        partial = f"{PARTIAL}; or look" if previous is not None else "Look"
        return (
            f"{partial} whether it was opened with the model and configuration of model.path, computes in "
            f"{self.dtypes[0]}, puts each tensor where its name says, and gets the prompt's ids as they are; if its "
            "arithmetic is known to be coarser, raise checks.tolerance"
        )


def _rollout(request: GenerationRequest, prompt: Prompt, completion: Completion) -> Rollout:
    rollout = Rollout(
        id=request.id, prompt=prompt, completion=completion, text="", reward=0.0, started_s=0.0, finished_s=0.0
    )
    check_finite(rollout)
    return rollout


def _failure(name: str, publication: Publication, what: str) -> SelfCheckError:
    return SelfCheckError(f"self-check {name!r} failed at version {publication.version}: {what}")
