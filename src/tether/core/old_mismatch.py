"""How much of the mismatch is staleness, and how much the engine? Where old log-probabilities are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from tether.core.seen import Labels, Seen, Tables
from tether.core.tally import empty_tally, places, totals
from tether.records import Metric, Metrics


@dataclass(frozen=True, slots=True)
class OldMismatch:
    """The two parts of ``d = d_policy + d_engine`` over the tokens of a step, and each by staleness.

    ``d_policy = logp - logp_old`` and ``d_engine = logp_old - logp_behavior`` (arXiv:2605.12070), in nats.
    ``mismatch/policy_mean`` and ``mismatch/engine_mean`` add up to ``mismatch/mean`` but for the guard.
    ``mismatch/engine_abs_mean`` leaves out tokens that were sampled over a cache of older weights, so that it can be
    held against the floor; ``mismatch/engine_cached_abs_mean`` is theirs. The sums by staleness are over all tokens:
    divide by ``staleness/histogram``.
    """

    labels: Labels
    """The staleness that tokens of the step have."""

    def tables(self, device: torch.device) -> Tables:
        """Seven numbers; by staleness the number of tokens and both sums of absolute values."""
        tallies = (empty_tally(self.labels.size, kind, device) for kind in (torch.int32, torch.float64, torch.float64))
        return (torch.zeros(7, dtype=torch.float64, device=device), *tallies)

    def add(self, seen: Seen, tables: Tables) -> None:
        """Two counts, five sums, one cell a token."""
        assert seen.apart is not None, "asked only where every micro-batch has old log-probs"
        policy, engine, own = seen.apart.policy.double(), seen.apart.engine.double(), seen.apart.own
        sums = [
            seen.counted.sum(dtype=torch.int32),
            own.sum(dtype=torch.int32),
            policy.sum(),
            engine.sum(),
            policy.abs().sum(),
            engine.abs().sum(),
            torch.dot(engine.abs(), own.double()),
        ]
        tables[0].add_(torch.stack([x.double() for x in sums]))
        place = places(seen.staleness, seen.lanes)
        for table, values in zip(tables[1:], (seen.counted, policy.abs(), engine.abs()), strict=True):
            table.scatter_add_(0, place, values)

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """The sums, then those by staleness."""
        return torch.cat([tables[0], *(totals(table) for table in tables[1:])])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """``policy_`` and ``engine_`` under ``mismatch/``; a mean of no token is left out."""
        n, own, policy, engine, policy_abs, engine_abs, engine_own = sums[:7]
        size = self.labels.size
        counts, *moved = (sums[7 + size * i : 7 + size * (i + 1)] for i in range(3))
        means = {
            "policy_mean": (policy, n),
            "policy_abs_mean": (policy_abs, n),
            "engine_mean": (engine, n),
            "engine_abs_mean": (engine_own, own),
            "engine_cached_abs_mean": (engine_abs - engine_own, n - own),
        }
        metrics = {f"mismatch/{name}": Metric(x / k, "mean", k) for name, (x, k) in means.items() if k}
        held = [(i, label) for i, label in enumerate(self.labels.names()) if counts[i]]
        for name, values in zip(("policy", "engine"), moved, strict=True):
            by_label = {label: values[i] for i, label in held}
            metrics[f"mismatch/{name}_abs_sum_by_staleness"] = Metric(by_label, "sum", n)
        return metrics
