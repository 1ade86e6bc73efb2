"""Support replay: the trainer's softmax runs over the ids that the engine sampled among."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from tether.registry import REPLAYS


@REPLAYS.register("support")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """``log pi(a) = z_a / T - log sum_{i in K} exp(z_i / T)``, with the set ``K`` that the engine kept for the token.

    Top-k, top-p and min-p sampling draw from a renormalized part of the distribution (methods: top-p mask replay, after
    MAI-Thinking-1). Over the whole vocabulary the trainer's log-prob of the same token is lower, by
    ``log(Z_full / Z_K)``, at unchanged weights: a ratio that is no ratio. Over ``K`` it is 1, exactly. Logits outside
    of ``K`` get no gradient at all, so what was cut off is never pushed up nor down. The reference of a KL penalty
    keeps the whole vocabulary.

    >>> Support().missing, Support().entropy
    ('error', 'full')
    """

    missing: Literal["error", "own"] = "error"
    """A token whose set is not known: an error, or it takes the whole vocabulary and is counted."""
    entropy: Literal["full", "kept"] = "full"
    """Of which distribution the policy's entropy is: over the whole vocabulary, or over ``K``."""
