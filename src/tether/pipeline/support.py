"""What each token was sampled among, laid along the tokens of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tether.core.support import KeptIds
from tether.errors import DataError
from tether.models.policy import Policy
from tether.pipeline.packing import MicroBatch, Row, Step
from tether.records import KeptSets, Truncation
from tether.replay.support import Support


def with_support(step: Step, support: Support | None, policy: Policy) -> Step:
    """The step with the kept sets that its rollouts bring, for this policy; as it is without ``support``.

    A token whose set is not known is an error or counted, as ``support`` says. A set that does not hold the id that was
    sampled from it, or holds an id twice or one that the model does not have, is an error.
    """
    if support is None:
        return step
    sets: dict[str, KeptSets] = {}
    num_unsupported = 0
    for row in step.rows:
        kept = row.rollout.completion.kept or _unknown(len(row.rollout.completion))
        missing = np.flatnonzero(np.diff(kept.starts) == 0)
        if len(missing) and support.missing == "error":
            raise DataError(
                f"what every token was sampled among must be known; in rollout {row.rollout.id!r} it is not of "
                f"{len(missing)} of {len(kept)} tokens, the first at {missing[0]}: take an engine that reports kept "
                "sets, or let such tokens take the whole vocabulary (missing = own)"
            )
        _check(row, kept, policy.vocabulary)
        sets[row.rollout.id] = kept
        num_unsupported += len(missing)
    batches = tuple(_laid(micro_batch, sets, support) for micro_batch in step.micro_batches)
    return replace(step, micro_batches=batches, num_unsupported=num_unsupported)


def with_lost_mass(step: Step, truncation: Truncation | None) -> Step:
    """The step, whose tokens were sampled under a truncation that is not replayed, so that what it cuts is measured."""
    if truncation is None:
        return step
    batches = tuple(replace(m, inputs=replace(m.inputs, truncation=truncation)) for m in step.micro_batches)
    return replace(step, micro_batches=batches)


def _unknown(length: int) -> KeptSets:
    return KeptSets(ids=np.empty(0, np.int32), starts=np.zeros(length + 1, np.int64))


def _check(row: Row, kept: KeptSets, vocabulary: int) -> None:
    name, sizes, sampled = row.rollout.id, np.diff(kept.starts), row.rollout.completion.token_ids
    if not len(kept.ids):
        return
    lowest, highest = int(kept.ids.min()), int(kept.ids.max())
    if lowest < 0 or highest >= vocabulary:
        raise DataError(
            f"kept ids must lie in 0 .. {vocabulary - 1}; those of rollout {name!r} go from {lowest} to {highest}: "
            "does the engine hold the same model?"
        )
    token = np.repeat(np.arange(len(kept)), sizes)
    places = token * vocabulary + kept.ids
    if not (np.diff(places) > 0).all() and len(np.unique(places)) < len(places):
        at = int(token[_first_twice(places)])
        raise DataError(
            f"an id is kept once; the set of token {at} of rollout {name!r} names one twice: look at what the engine "
            "reports"
        )
    has_own = np.bincount(token[kept.ids == sampled[token]], minlength=len(kept)) > 0
    lost = np.flatnonzero((sizes > 0) & ~has_own)
    if len(lost):
        at = int(lost[0])
        raise DataError(
            f"a token is sampled among the ids that are kept; in rollout {name!r} token {at} is id {sampled[at]}, "
            f"which is not among the {sizes[at]} kept ({len(lost)} such tokens): the engine reports sets of other "
            "tokens, or under other settings than it samples with"
        )


def _first_twice(places: np.ndarray) -> int:
    _, firsts = np.unique(places, return_index=True)
    return int(np.setdiff1d(np.arange(len(places)), firsts)[0])


def _laid(micro_batch: MicroBatch, sets: dict[str, KeptSets], support: Support) -> MicroBatch:
    own = [sets[row.rollout.id] for row in micro_batch.rows]
    sizes = np.concatenate([np.zeros(1, np.int64), *(np.diff(kept.starts) for kept in own)])
    laid = KeptIds.of(
        np.concatenate([np.empty(0, np.int32), *(kept.ids for kept in own)]),
        sizes.cumsum(dtype=np.int64),
        is_entropy_kept=support.entropy == "kept",
    )
    inputs = micro_batch.inputs
    return replace(micro_batch, inputs=replace(inputs, kept=laid.to(inputs.ids.device)))
