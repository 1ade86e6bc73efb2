"""Old log-probs scored before each update, while the weights are still there: the strategy ``interruption``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tether.pipeline.old_policy import Rescoring, refuse, unknown, with_old
from tether.pipeline.packing import MicroBatch, Step
from tether.pipeline.scoring import Scorer
from tether.pipeline.snapshots import WeightCopies
from tether.pipeline.update_metrics import by_rollout
from tether.ports import Publication
from tether.records import Floats, Metrics, Rollout

Known = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Ids, versions and old log-probs (NaN where not scored) of a rollout as far as it was sampled."""


class Acquisition:
    """The trainer scores what was sampled under its weights before it updates them, finished or not.

    Every update must be published. What an engine samples while an update is being made still has the version before
    it; so the weights before the last update stay, one copy, and the next call scores the rest. Exact
    (arXiv:2605.12070).

    Args:
        rescoring: how a part of a batch is evaluated.
        scorer: how rollouts are laid out for it.
        copies: for the weights before the last update; one version.
    """

    def __init__(self, rescoring: Rescoring, scorer: Scorer, copies: WeightCopies) -> None:
        self._rescoring, self._scorer, self._copies = rescoring, scorer, copies
        self._known: dict[str, Known] = {}

    publications: tuple[Publication, ...] = ()

    def published(self, version: int, live: int | None) -> None:
        """Nothing: what it holds goes by updates and rollouts."""

    def acquire(self, rollouts: Sequence[Rollout], alive: Iterable[str], updates: int) -> None:
        """Score every token of these weights and of those before that is not scored yet."""
        with self._rescoring.cost.running():
            kept = set(alive)
            self._known = {id: known for id, known in self._known.items() if id in kept}
            reachable = (*self._copies.versions, updates)
            todo: dict[str, Rollout] = {}
            for rollout in rollouts:
                old = self._old(rollout)
                if rollout.id in kept and np.isin(rollout.completion.version[np.isnan(old)], reachable).any():
                    todo[rollout.id] = replace(rollout, logp_old=old)
            if not todo:
                return
            step = self._scorer.packed(list(todo.values()))
            scored = [self._filled(unknown(m), m, updates) for m in step.micro_batches]
            for id, values in by_rollout(step.micro_batches, scored).items():
                completion = todo[id].completion
                self._known[id] = (completion.token_ids, completion.version, values.cpu().numpy())

    def laid(self, step: Step, updates: int) -> Step:
        """From what was scored; what the weights before the last update sampled since is scored now."""
        with self._rescoring.cost.running():
            rolled = {row.rollout.id: self._old(row.rollout) for row in step.rows}
            old: list[Tensor] = []
            for m in step.micro_batches:
                known = np.concatenate([rolled[row.rollout.id] for row in m.rows])
                values = torch.from_numpy(known).to(m.logp_behavior.device)
                old.append(self._filled(values, m, None))
                self._check(m, old[-1], updates)
            if step.denominator.num_tokens:  # else no update is made, and the weights before the last one stay needed
                self._copies.keep(updates, oldest=updates)
            return with_old(step, old)

    def told(self) -> Metrics:
        """``time/old_s`` and ``old/``."""
        scores = sum(values.nbytes for known in self._known.values() for values in known)
        return self._rescoring.cost.told(len(self._copies.versions), self._copies.num_bytes + scores)

    def state(self) -> dict[str, Any]:
        """The scores, and the weights before the last update."""
        known = {id: tuple(torch.from_numpy(values.copy()) for values in held) for id, held in self._known.items()}
        return {"known": known, "copies": self._copies.state(), "forwards": self._rescoring.cost.forwards}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``."""
        ids, versions, logps = ({id: held[i].numpy() for id, held in state["known"].items()} for i in range(3))
        self._known = {id: (ids[id], versions[id], logps[id]) for id in ids}
        self._copies.restore(state["copies"])
        self._rescoring.cost.forwards = int(state["forwards"])

    def _filled(self, old: Tensor, micro_batch: MicroBatch, updates: int | None) -> Tensor:
        """With the tokens of the weights before the last update, and of ``updates``, the current ones."""
        for version in self._copies.versions:
            old = self._rescoring.filled(old, micro_batch, version, self._copies.placed(version))
        return old if updates is None else self._rescoring.filled(old, micro_batch, updates, {})

    def _old(self, rollout: Rollout) -> Floats:
        """What is known of a rollout's tokens; those of a start before this one are not its own."""
        completion = rollout.completion
        old: Floats = np.full(len(completion), np.nan, np.float32)
        if rollout.id in self._known:
            ids, versions, logp = (values[: len(completion)] for values in self._known[rollout.id])
            n = len(ids)
            is_same = (ids == completion.token_ids[:n]) & (versions == completion.version[:n])
            old[:n] = np.where(np.logical_and.accumulate(is_same), logp, np.nan)
        return old

    def _check(self, micro_batch: MicroBatch, old: Tensor, updates: int) -> None:
        missing = (old.isnan() & (micro_batch.version != updates)).nonzero().flatten().tolist()
        if not missing:
            return
        lengths = np.cumsum([len(row.rollout.completion) for row in micro_batch.rows])
        row = micro_batch.rows[int(np.searchsorted(lengths, missing[0], side="right"))]
        raise refuse(
            int(micro_batch.version[missing[0]]),
            row.rollout.id,
            (*self._copies.versions, updates),
            "each version is scored before the update after next, wherever a rollout waits; this one was not handed in "
            "then: please report it with this run, or set old.strategy = 'snapshots'",
        )
