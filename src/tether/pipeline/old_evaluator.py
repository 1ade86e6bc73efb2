"""A second model that scores rollouts at the weights that sampled them, while the trainer trains: ``evaluator``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tether.errors import OldVersionError
from tether.models.policy import Policy
from tether.pipeline.old_policy import Cost, Rescoring, refuse, unknown, with_old
from tether.pipeline.packing import Step
from tether.pipeline.scoring import Scorer, placed
from tether.ports import Publication, WeightStore
from tether.records import Floats, Metrics, Rollout


class OldEvaluator:
    """Forward only: holds the versions that tokens may still have, in the trainer's dtype, and scores rollouts.

    Args:
        scorer: of a model of its own, laid out, tempered and routed as in training.
        store: to which the trainer publishes its weights in its own dtype.
    """

    def __init__(self, scorer: Scorer, store: WeightStore) -> None:
        self._scorer, self._store = scorer, store
        self._rescoring = Rescoring(policy=scorer.policy, temperature=scorer.temperature, cost=Cost())
        self._held: dict[int, dict[str, Tensor]] = {}
        self.busy_s = 0.0
        """Real seconds that it has worked so far."""

    @property
    def versions(self) -> tuple[int, ...]:
        """Those that it holds, the oldest first."""
        return tuple(sorted(self._held))

    async def load(self, publication: Publication) -> None:
        """Hold a version too; one that it holds already may come again."""
        start = time.perf_counter()
        if publication.version not in self._held:
            weights = self._store.fetch(publication)
            self._held[publication.version] = placed(self._scorer.policy.model, weights, None)
        self.busy_s += time.perf_counter() - start

    async def score(self, rollout: Rollout) -> Floats:
        """``[L]``, each token at its own version; ``OldVersionError`` for a version that is not held."""
        start = time.perf_counter()
        versions = [int(version) for version in np.unique(rollout.completion.version)]
        for version in versions:
            if version not in self._held:
                raise refuse(
                    version,
                    rollout.id,
                    self.versions,
                    "load every publication before tokens of it are scored, and forget none that may still come",
                )
        old: Tensor = torch.zeros(0)
        if versions:
            (micro_batch,) = self._scorer.packed([rollout]).micro_batches
            old = unknown(micro_batch)
            for version in versions:
                old = self._rescoring.filled(old, micro_batch, version, self._held[version])
        self.busy_s += time.perf_counter() - start
        scores: Floats = old.cpu().numpy()
        return scores

    async def forget(self, older_than: int) -> None:
        """Versions below are needed no longer."""
        self._held = {version: held for version, held in self._held.items() if version >= older_than}


class Evaluated:
    """The trainer's side of an ``OldEvaluator``: publishes to it, and takes what rollouts bring.

    Args:
        policy: whose weights are published.
        store: in the trainer's dtype; it keeps ``most`` versions.
        most: versions that may be needed at once.
        reach: a version this many updates old cannot come any more, where nobody says which one is ``live``.
    """

    def __init__(self, policy: Policy, store: WeightStore, most: int, reach: int) -> None:
        self._policy, self._store, self._most, self._reach = policy, store, most, reach
        self._held: dict[int, Publication] = {}
        self._cost = Cost()

    @property
    def publications(self) -> tuple[Publication, ...]:
        """What the evaluator must hold, the oldest first."""
        return tuple(self._held[version] for version in sorted(self._held))

    def published(self, version: int, live: int | None) -> None:
        """Publish in the trainer's dtype too."""
        with self._cost.running():
            oldest = version - self._reach + 1 if live is None else live
            self._held = {v: publication for v, publication in self._held.items() if v >= oldest}
            self._publish(version, self._policy.weights())

    def acquire(self, rollouts: Sequence[Rollout], alive: Iterable[str], updates: int) -> None:
        """Nothing: the evaluator scores."""

    def laid(self, step: Step, updates: int) -> Step:
        """What the rollouts bring, checked to be whole."""
        for row in step.rows:
            completion, old = row.rollout.completion, row.rollout.logp_old
            needed = completion.version != updates
            missing = needed if old is None else needed & np.isnan(old)
            if missing.any():
                version = int(completion.version[missing][0])
                raise refuse(
                    version,
                    row.rollout.id,
                    sorted(self._held),
                    "the evaluator must score a rollout before its group is taken, and this one came without",
                )
            self._cost.forwards += len(np.unique(completion.version))
        return with_old(step, [unknown(m) for m in step.micro_batches])

    def told(self) -> Metrics:
        """``time/old_s``, of publishing alone, and ``old/``; forward passes are those that the evaluator made."""
        return self._cost.told(len(self._held), sum(publication.num_bytes for publication in self._held.values()))

    def state(self) -> dict[str, Any]:
        """The weights that the evaluator must hold."""
        return {"held": {version: dict(self._store.fetch(held)) for version, held in sorted(self._held.items())}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Publish them again."""
        self._held = {}
        for version, weights in sorted(state["held"].items()):
            self._publish(version, weights)

    def _publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        if len(self._held) >= self._most:
            raise OldVersionError(
                f"at most {self._most} versions of the weights can be needed at once, by the bound on staleness; held "
                f"are {', '.join(map(str, sorted(self._held)))}, and {version} comes: this is a fault of the "
                "pipeline: please report it with this run"
            )
        self._held[version] = self._store.publish(version, weights)
