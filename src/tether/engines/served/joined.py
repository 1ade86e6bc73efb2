"""A completion that was interrupted, and what came after."""

from __future__ import annotations

from typing import Any

import numpy as np

from tether.errors import DataError
from tether.records import Completion, KeptSets


def joined(made: Completion | None, rest: Completion) -> Completion:
    """Both as one completion, which ends as the rest does.

    >>> from dataclasses import replace
    >>> one = Completion(token_ids=np.array([4], np.int32), logp=np.array([-1.0], np.float32),
    ...                  version=np.array([0], np.int32), finish="interrupted")
    >>> joined(one, replace(one, finish="length")).token_ids.tolist()
    [4, 4]
    """
    if made is None:
        return rest
    if rest.kept is not None and made.kept is None and len(made):
        raise DataError(
            "a completion goes on with what it began with: it began without the sets that tokens were kept from"
        )
    return Completion(
        token_ids=np.concatenate([made.token_ids, rest.token_ids]),
        logp=np.concatenate([made.logp, rest.logp]),
        version=np.concatenate([made.version, rest.version]),
        finish=rest.finish,
        cached_version=_cached(made, rest),
        top_k_ids=_rows(made.top_k_ids, rest.top_k_ids),
        top_k_logp=_rows(made.top_k_logp, rest.top_k_logp),
        kept=None if rest.kept is None else _kept(made.kept, rest.kept),
    )


def _cached(made: Completion, rest: Completion) -> Any:
    if made.cached_version is None and rest.cached_version is None:
        return None
    both = [part.version if part.cached_version is None else part.cached_version for part in (made, rest)]
    return np.concatenate(both)


def _rows(made: Any, rest: Any) -> Any:
    """Alternatives, as many a token as the rest has."""
    if rest is None:
        return None
    return rest if made is None else np.concatenate([made[:, : rest.shape[1]], rest])


def _kept(made: KeptSets | None, rest: KeptSets) -> KeptSets:
    if made is None:
        return rest
    return KeptSets(
        ids=np.concatenate([made.ids, rest.ids]),
        starts=np.concatenate([made.starts, made.starts[-1] + rest.starts[1:]]),
    )
