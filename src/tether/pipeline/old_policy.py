"""Old log-probabilities: the trainer's own evaluation of each token at the weights that sampled it.

``d = logp - logp_behavior`` is then known in its two parts: what updates have changed since, and what the engine
computes otherwise at equal weights (arXiv:2605.12070). When a batch is taken those weights are gone, so something must
be kept in time: the weights themselves (``snapshots``), a second model that scores at once (``evaluator``), or the
scores, taken before every update (``interruption``). What is here serves all three.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tether.errors import ConfigError, OldVersionError
from tether.models.policy import ModelInputs, Policy
from tether.pipeline.packing import MicroBatch, Row, Step
from tether.pipeline.scoring import Scoring
from tether.ports import Publication
from tether.records import Floats, Metric, Metrics, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class OldOptions:
    """The ``[old]`` table: how the trainer's own log-probs at the weights that sampled each token are acquired.

    >>> OldOptions(where="disk")
    Traceback (most recent call last):
    tether.errors.ConfigError: old.where = 'disk' is where snapshots lie; got strategy 'none': set old.strategy = \
'snapshots', or leave old.where out
    """

    strategy: Literal["none", "snapshots", "evaluator", "interruption"] = "none"
    """``snapshots``: the trainer keeps copies of its weights and evaluates a batch under each that it needs.
    ``evaluator``: a second model holds them and scores rollouts as they are sampled. ``interruption``: the trainer
    scores what was sampled before each update, for which every update must be published. ``none``: nothing is kept."""
    where: Literal["cpu", "disk"] = "cpu"
    """Where snapshots lie: in the trainer's memory, or in files of a temporary folder of its machine."""

    def __post_init__(self) -> None:
        if self.where == "disk" and self.strategy != "snapshots":
            raise ConfigError(
                f"old.where = 'disk' is where snapshots lie; got strategy {self.strategy!r}: set old.strategy = "
                "'snapshots', or leave old.where out"
            )


@runtime_checkable
class OldPolicy(Protocol):
    """A strategy, on the trainer's side."""

    @property
    def publications(self) -> tuple[Publication, ...]:
        """What an evaluator must hold, the oldest first; nothing without one."""
        ...

    def published(self, version: int, live: int | None) -> None:
        """The weights of this moment were published; no token still to be trained on is older than ``live``."""
        ...

    def acquire(self, rollouts: Sequence[Rollout], alive: Iterable[str], updates: int) -> None:
        """Score what must be scored before the next update, and forget rollouts that are not ``alive``."""
        ...

    def laid(self, step: Step, updates: int) -> Step:
        """The step with the old log-prob of every token but those that the weights of this moment, after ``updates``,
        sampled: these are NaN, for the trainer's first forward pass gives theirs. ``OldVersionError`` for one that
        cannot be told."""
        ...

    def told(self) -> Metrics:
        """What the last step took, and what is held."""
        ...

    def state(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``."""
        ...


@runtime_checkable
class Evaluator(Protocol):
    """Scores rollouts at the weights that sampled them, with a model of its own."""

    async def load(self, publication: Publication) -> None:
        """Hold a version too; one that it holds already may come again."""
        ...

    async def score(self, rollout: Rollout) -> Floats:
        """``[L]``, each token at its own version."""
        ...

    async def forget(self, older_than: int) -> None:
        """Versions below are needed no longer."""
        ...


def most_versions(allowed: int, lag: int) -> int:
    """Published versions that tokens within the bound can have, with the newest, and one for a use under way.

    >>> most_versions(15, 8), most_versions(3, 1)
    (3, 5)
    """
    return allowed // lag + 2


@dataclass(slots=True)
class Cost:
    """What acquiring takes, between two reports."""

    seconds: float = 0.0
    """Real ones."""
    forwards: int = 0
    """Forward passes of a micro-batch, or of a part of it."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """The seconds that a block takes."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - start

    def told(self, num_versions: int, num_bytes: int) -> Metrics:
        """As metrics, with what is held; begins anew."""
        metrics = {
            "time/old_s": Metric(self.seconds, "sum"),
            "old/forwards": Metric(float(self.forwards), "sum"),
            "old/versions": Metric(float(num_versions), "max"),
            "old/bytes": Metric(float(num_bytes), "max"),
        }
        self.seconds, self.forwards = 0.0, 0
        return metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescoring:
    """The model under weights of the past."""

    policy: Policy
    """Whose forward pass is lent, and whose own weights stay as they are."""
    temperature: float
    """Of the sampling."""
    cost: Cost

    @torch.no_grad()
    def filled(
        self, old: Float[Tensor, "T"], micro_batch: MicroBatch, version: int, weights: Mapping[str, Tensor]
    ) -> Float[Tensor, "T"]:
        """``old`` with the tokens of ``version`` that are NaN in it told.

        ``weights``: by the names of ``Scoring``, on the model's device; the others are the model's own. Only rows of
        the model in which such a token stands are computed.
        """
        wanted = (micro_batch.version == version) & old.isnan()
        if not bool(wanted.any()):
            return old
        inputs = narrowed(micro_batch.inputs, wanted)
        scoring = Scoring(self.policy, self.temperature)
        logp: Tensor = torch.func.functional_call(scoring, dict(weights), (inputs,))
        self.cost.forwards += 1
        return old.masked_scatter(wanted, logp.float())


def narrowed(inputs: ModelInputs, wanted: Bool[Tensor, "T"]) -> ModelInputs:
    """These tokens alone, and of the model's rows those in which one of them stands."""
    rows = torch.unique(inputs.row[wanted])
    place = torch.zeros(len(inputs.input_ids), dtype=torch.int64, device=rows.device)
    place[rows] = torch.arange(len(rows), device=rows.device)

    def some(x: Tensor | None) -> Tensor | None:
        return None if x is None else x[rows]

    some_tokens = inputs.only(wanted)
    return replace(
        some_tokens,
        input_ids=inputs.input_ids[rows],
        row=place[some_tokens.row],
        position=some(inputs.position),
        branch=some(inputs.branch),
        experts=some(inputs.experts),
    )


def unknown(micro_batch: MicroBatch) -> Float[Tensor, "T"]:
    """An old log-prob a token, as far as the rollouts brought it, NaN elsewhere."""
    return (
        torch.full_like(micro_batch.logp_behavior, torch.nan) if micro_batch.logp_old is None else micro_batch.logp_old
    )


def with_old(step: Step, old: Sequence[Tensor]) -> Step:
    """The step with these old log-probs, one tensor a micro-batch."""
    pairs = zip(step.micro_batches, old, strict=True)
    return replace(step, micro_batches=tuple(replace(m, logp_old=values) for m, values in pairs))


def versions_of(rows: Iterable[Row]) -> list[int]:
    """The versions that tokens of these have, the oldest first."""
    return sorted({int(v) for row in rows for v in np.unique(row.rollout.completion.version)})


def refuse(version: int, rollout_id: str, held: Iterable[int], way_out: str) -> OldVersionError:
    """The error for a token whose version is not held."""
    listed = ", ".join(map(str, held)) or "none"
    return OldVersionError(
        f"the old log-prob of a token needs the weights that sampled it; a token of rollout {rollout_id!r} has version "
        f"{version}, and held are {listed}: {way_out}"
    )
