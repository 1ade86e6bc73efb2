"""Rollouts that span versions: how many do, and how old the caches are that their tokens were sampled over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tether.pipeline.packing import is_cached_older
from tether.records import Metric, Metrics, Rollout


def spanning_metrics(rollouts: Sequence[Rollout]) -> Metrics:
    """Shares of rollouts and of tokens, and the oldest cache; nothing of rollouts without a token.

    ``rollout/spanning_fraction``: rollouts whose tokens have several versions. ``staleness/cached_fraction``: tokens
    sampled over a cache of older weights than their own. ``staleness/cache_age_max``: most updates between the two.
    """
    completions = [rollout.completion for rollout in rollouts if len(rollout.completion)]
    if not completions:
        return {}
    num_tokens = float(sum(len(c) for c in completions))
    spanning = [len(np.unique(c.version)) > 1 for c in completions]
    ages = [int((c.version - c.cached_version).max()) for c in completions if c.cached_version is not None]
    older = sum(int(is_cached_older(c).sum()) for c in completions)
    return {
        "rollout/spanning_fraction": Metric(sum(spanning) / len(spanning), "mean", float(len(spanning))),
        "staleness/cached_fraction": Metric(older / num_tokens, "mean", num_tokens),
        "staleness/cache_age_max": Metric(float(max(ages, default=0)), "max", num_tokens),
    }
