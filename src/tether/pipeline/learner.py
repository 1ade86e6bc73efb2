"""The trainer's side of a run: whatever lives beside the weights that are being trained."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from tether.errors import ResumeError
from tether.evals.evaluation import Evaluation
from tether.models.loading import LoadedModel
from tether.models.lora import check_still, is_adapted, trial
from tether.models.sharing import PromptSharing
from tether.pipeline.capture import LEARNER_FILE, Captured, HostCopies, write_model
from tether.pipeline.masking import check_masks
from tether.pipeline.old_policy import OldPolicy
from tether.pipeline.packing import Step
from tether.pipeline.routing import with_routes
from tether.pipeline.sampled import check_sampled
from tether.pipeline.scoring import Scorer, Scores
from tether.pipeline.spanning import spanning_metrics
from tether.pipeline.support import with_lost_mass, with_support
from tether.pipeline.trainer import StepReport, Trainer
from tether.pipeline.writing import Into, ThreadWriting, Writing
from tether.ports import TRIAL, Publication, WeightStore
from tether.records import Metric, Rollout, Truncation
from tether.replay.routing import Routing
from tether.replay.support import Support


@runtime_checkable
class Learner(Protocol):
    """Holds the weights being trained: here, or in a process of its own."""

    @property
    def updates(self) -> int:
        """Optimizer updates made: the version of the weights."""
        ...

    @property
    def sharing(self) -> PromptSharing | None:
        """How the steps made for it may share prompts."""
        ...

    @property
    def remark(self) -> str:
        """What a person should hear of before it starts, if anything."""
        ...

    async def step(self, step: Step) -> StepReport:
        """Train on a batch: as many updates as one serves, told as one."""
        ...

    async def publish(self, live: int | None = None) -> Publication:
        """Put the weights of this moment into the store; no token still to be trained on is older than ``live``."""
        ...

    async def publish_trial(self) -> Publication | None:
        """Before version 0: put an adapter that makes a difference into the store; nothing where there is no adapter,
        since then no engine can answer without the weights."""
        ...

    async def old_publications(self) -> tuple[Publication, ...]:
        """What an evaluator of old log-probs must hold, the oldest first; nothing without one."""
        ...

    async def acquire(self, rollouts: Sequence[Rollout], alive: Collection[str]) -> None:
        """Score what must be scored before the next update, and forget rollouts whose ids are not ``alive``."""
        ...

    async def score(
        self, rollouts: Sequence[Rollout], publication: Publication, temperature: float, *, formats: bool = True
    ) -> Scores:
        """Log-probabilities of sampled tokens under a publication, the one before it, and the weights of this moment
        if they are those of the publication; with ``formats``, also in other number formats."""
        ...

    async def check_masks(self, rollouts: Sequence[Rollout]) -> None:
        """Raise ``SelfCheckError`` if tokens that are not trained on change loss or gradient; no weight changes."""
        ...

    async def evaluate(self) -> Evaluation:
        """Answer the held-out prompts with the weights of this moment."""
        ...

    async def save_model(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder, whole or not at all."""
        ...

    async def save(self, into: Into, first: Callable[[], object]) -> Writing:
        """Copy what ``restore`` needs: weights, optimizer, random states, the weights that the engines hold. The
        copies are written beside the training by ``into``, where the learner lives, once ``first`` is done here."""
        ...

    async def restore(self, folder: Path) -> Publication:
        """Go on from the state folder of what ``save`` wrote; publishes again what the engine held then."""
        ...


@dataclass(slots=True, kw_only=True)
class LocalLearner:
    """A ``Learner`` in this process."""

    trainer: Trainer
    store: WeightStore
    evaluator: Callable[[int, Mapping[str, Tensor]], Awaitable[Evaluation]]
    loaded: LoadedModel
    """The model that the trainer trains."""
    dtype: str
    """In which the model is saved."""
    token_budget: int
    """Padded tokens of one forward pass."""
    updates_per_batch: int = 1
    """Updates that a step makes."""
    old: OldPolicy | None = None
    """How old log-probs are acquired, if they are."""
    routing: Routing | None = None
    """Whether every pass of the policy takes the engine's routes."""
    support: Support | None = None
    """Whether every pass of the policy runs over what the engine sampled among."""
    truncation: Truncation | None = None
    """What the engine samples under if that is not replayed; what it cuts away is then told."""
    published: Publication | None = None
    """What was put into the store last."""
    previous: Publication | None = None
    """What was put there before it."""

    @property
    def updates(self) -> int:
        """Optimizer updates made."""
        return self.trainer.updates

    @property
    def sharing(self) -> PromptSharing | None:
        """How the steps made for it may share prompts."""
        return self.trainer.sharing

    @property
    def remark(self) -> str:
        """Why completions do not share their prompt, where they could have."""
        return self.trainer.policy.apart_because

    async def step(self, step: Step) -> StepReport:
        """Train on a batch: as many updates as one serves, told as one."""
        check_sampled(step)
        step = with_routes(step, self.routing, self.trainer.policy)
        step = with_lost_mass(with_support(step, self.support, self.trainer.policy), self.truncation)
        if self.old is not None:
            step = self.old.laid(step, self.trainer.updates)
        report = self.trainer.step(step, self.updates_per_batch)
        if not report.updated:
            return report
        told = spanning_metrics([row.rollout for row in step.rows]) | ({} if self.old is None else self.old.told())
        if self.routing is not None:
            num_tokens = sum(row.num_tokens for row in step.rows)
            told["replay/unrouted_fraction"] = Metric(step.num_unrouted / num_tokens, "mean", float(num_tokens))
        if self.support is not None:
            num_sampled = step.denominator.num_tokens
            told["replay/unsupported_fraction"] = Metric(step.num_unsupported / num_sampled, "mean", float(num_sampled))
        return replace(report, metrics={**report.metrics, **told})

    async def publish(self, live: int | None = None) -> Publication:
        """Put the weights of this moment into the store."""
        if self.old is not None:
            self.old.published(self.trainer.updates, live)
        self.previous, self.published = (
            self.published,
            self.store.publish(self.trainer.updates, self.trainer.policy.weights()),
        )
        return self.published

    async def publish_trial(self) -> Publication | None:
        """Put an adapter that makes a difference into the store, if there are adapters."""
        if not is_adapted(model := self.trainer.policy.model):
            return None
        self.published = self.store.publish(TRIAL, trial(model))
        return self.published

    async def old_publications(self) -> tuple[Publication, ...]:
        """What an evaluator of old log-probs must hold."""
        return () if self.old is None else self.old.publications

    async def acquire(self, rollouts: Sequence[Rollout], alive: Collection[str]) -> None:
        """Score what must be scored before the next update."""
        if self.old is not None:
            self.old.acquire(rollouts, alive, self.trainer.updates)

    async def score(
        self, rollouts: Sequence[Rollout], publication: Publication, temperature: float, *, formats: bool = True
    ) -> Scores:
        """Log-probabilities of sampled tokens; the model's own weights stay as they are."""
        previous = None if self.previous is None else self.store.fetch(self.previous)
        return Scorer(self.trainer.policy, self.token_budget, temperature, self.routing, self.support).scores(
            rollouts,
            (self.store.fetch(publication), previous),
            is_current=self.trainer.updates == publication.version,
            formats=formats,
        )

    async def check_masks(self, rollouts: Sequence[Rollout]) -> None:
        """Raise ``SelfCheckError`` if tokens that are not trained on change loss or gradient."""
        check_masks(self.trainer, rollouts, self.token_budget, self.routing, self.support)

    async def evaluate(self) -> Evaluation:
        """Answer the held-out prompts with the weights of this moment."""
        return await self.evaluator(self.trainer.updates, self.trainer.policy.weights())

    async def save_model(self, folder: Path) -> None:
        """Write the weights, in the dtype of the model, as a Hugging Face folder; refused if they are not finite, or
        if the base of an adapter is not what it was."""
        check_still(self.loaded.model)
        write_model(self.loaded, self.dtype, folder)

    def captured(self) -> Captured:
        """Everything of this moment, copied."""
        assert self.published is not None, "a run publishes before its first step"
        copies = HostCopies()
        published = {
            "version": self.published.version,
            "fingerprint": self.published.fingerprint,
            "weights": dict(self.store.fetch(self.published)),  # nobody changes what was published
        }
        state = {
            "trainer": copies(self.trainer.state()),
            "random": _random_state(),
            "published": published,
            "old": None if self.old is None else self.old.state(),  # nor what was kept of past versions
        }
        model = copies.model(self.loaded.model)
        return Captured(loaded=replace(self.loaded, model=model), dtype=self.dtype, state=state)

    async def save(self, into: Into, first: Callable[[], object]) -> Writing:
        """Copy everything; write it in a thread."""
        return ThreadWriting(partial(_one_then, first, partial(into, self.captured().write)))

    async def restore(self, folder: Path) -> Publication:
        """Read it; the weights published again have the fingerprint they had."""
        state = torch.load(folder / LEARNER_FILE, map_location="cpu", weights_only=True)
        self.trainer.restore(state["trainer"])
        _set_random_state(state["random"])
        if self.old is not None:
            self.old.restore(state["old"])
        held = state["published"]
        self.published = self.store.publish(held["version"], held["weights"])
        if self.published.fingerprint != held["fingerprint"]:
            raise ResumeError(
                f"the weights that the engine held must come back bit for bit; version {held['version']} had "
                f"fingerprint {held['fingerprint'][:12]} and has {self.published.fingerprint[:12]}: was engine.dtype "
                "changed?"
            )
        return self.published


def _one_then(first: Callable[[], object], then: Callable[[], object]) -> None:
    first()
    then()


def _random_state() -> dict[str, Any]:
    """Of the generators that a reward or a task may draw from; the pipeline itself draws from seeds alone."""
    version, words, gauss = random.getstate()
    _, keys, *rest = np.random.get_state()
    return {
        "python": (version, list(words), gauss),
        "numpy": (torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_state(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    keys, *rest = state["numpy"]
    np.random.set_state(("MT19937", keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.device_count() == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
