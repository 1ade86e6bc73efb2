"""What came back against what was asked: ids that an engine changed on the way, tokens of other weights."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from tether.errors import SelfCheckError
from tether.ports import GenerationRequest, Publication
from tether.records import Rollout


class Drift(NamedTuple):
    """A completion that cannot be what was sampled for its request."""

    rollout_id: str
    what: str


def drifts_of(pairs: Sequence[tuple[GenerationRequest, Rollout]], eos_ids: Collection[int]) -> list[Drift]:
    """Every completion whose ids do not fit their request: somebody between sampler and trainer reads them as text, or
    cuts and adds.

    That a prompt's ids arrived as they were sent an engine behind a wire checks itself; here agreement shows it.
    """
    return [
        Drift(rollout.id, what) for request, rollout in pairs for what in _drifts(request, rollout, frozenset(eos_ids))
    ]


def check_drift(pairs: Sequence[tuple[GenerationRequest, Rollout]], eos_ids: Collection[int]) -> None:
    """Raise ``SelfCheckError`` naming the first, with the count, if any completion drifted."""
    if found := drifts_of(pairs, eos_ids):
        raise SelfCheckError(f"self-check 'ids' failed: {told_of(found, len(pairs))}")


def told_of(found: Sequence[Drift], total: int) -> str:
    """In words."""
    first = found[0]
    return (
        f"{len({drift.rollout_id for drift in found})} of {total} completions are not what was sampled; "
        f"{first.rollout_id!r} {first.what}. Ids must come back as they were sampled, no text in between: look at the "
        "engine's stop tokens, its limits, and whether it tokenizes what it decoded"
    )


def check_versions(rollouts: Sequence[Rollout], publication: Publication) -> None:
    """Refuse tokens of another version, and tokens sampled over a cache of another version."""
    versions = sorted({int(v) for rollout in rollouts for v in rollout.completion.version})
    if versions != [publication.version]:
        raise SelfCheckError(
            f"self-check 'versions' failed at version {publication.version}: tokens sampled after the load are stamped "
            f"{', '.join(map(str, versions)) or 'with nothing'}. The engine must stamp each token with the version of "
            "the weights that made its logits, and take the new one before it acknowledges a load"
        )
    cached = sorted({int(v) for r in rollouts if (c := r.completion.cached_version) is not None for v in c})
    if cached and cached != [publication.version]:
        raise SelfCheckError(
            f"self-check 'versions' failed at version {publication.version}: prompts sampled after the load were read "
            f"over a cache of version {', '.join(map(str, cached))}. Caches of prompts must be keyed by the version, "
            "or be reset when weights change"
        )


def _drifts(request: GenerationRequest, rollout: Rollout, eos_ids: frozenset[int]) -> Iterator[str]:
    made = rollout.completion
    ids = made.token_ids.tolist()
    if len(ids) > request.max_tokens:
        yield f"has {len(ids)} tokens and may have {request.max_tokens}"
    if any(token < 0 for token in ids):
        yield f"has the id {min(ids)}"
    if any(token in eos_ids for token in ids[:-1]):
        at = next(place for place, token in enumerate(ids) if token in eos_ids)
        yield f"goes on after an end-of-sequence id, {ids[at]} at token {at}"
    if made.finish == "stop" and (not ids or ids[-1] not in eos_ids):
        yield f"ended with finish 'stop' and id {ids[-1] if ids else 'none'}, which is no end-of-sequence id"
    if made.finish == "length" and len(ids) < request.max_tokens:
        yield f"ended with finish 'length' at {len(ids)} of {request.max_tokens} tokens"
