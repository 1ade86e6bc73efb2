"""How far does the policy stand from what was sampled? Token by token, and response by response.

``d = logp - logp_behavior`` over trainable tokens, at the weights just before the update; ``r = exp(d)``; log-ratios
after the guard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.seen import Labels, Seen, Tables
from tether.core.tally import empty_tally, places, totals
from tether.records import Metric, Metrics

IS_DEVIATION: Final = 0.2
"""A token deviates if ``|r - 1|`` exceeds this."""
LOW_PROBABILITY: Final = 1e-3
"""A token is improbable if its probability lies below."""
LEAST_SQUARE: Final = 2.0**-48
"""Of a ratio: ``e^d - 1`` is held in float32, which ends at steps of 2^-24 near -1."""
LARGEST_EXPONENT: Final = 700.0
"""Of a perplexity: float64 ends at e^709."""


@dataclass(frozen=True, slots=True)
class TokenMismatch:
    """Averages over the tokens of a step.

    ``k1, k2, k3`` estimate KL(behavior || current) by ``-d``, ``d^2/2``, ``e^d - 1 - d`` (Schulman 2020); ``ess`` is
    ``(sum r)^2 / (N sum r^2)``, 0 where every r is below 2^-24; ``chi2`` is ``mean (r - 1)^2``; ``tv`` is
    ``mean |r - 1| / 2``, an unbiased estimate of the total variation, and ``tv_sampled`` ``mean |pi - mu|``, which
    stays small where improbable tokens move; ``variance`` has ddof 0; ``ppl`` are perplexities, ``exp`` of the mean
    ``-logp``, and ``ppl_ratio`` is current / behavior; ``low_prob`` are shares of tokens of probability below 1e-3.
    """

    def tables(self, device: torch.device) -> Tables:
        """Fourteen numbers."""
        return (torch.zeros(14, dtype=torch.float64, device=device),)

    def add(self, seen: Seen, tables: Tables) -> None:
        """Five counts, nine sums."""
        off, least = seen.gain.abs(), math.log(LOW_PROBABILITY)
        gain, probability = seen.gain.double(), seen.behavior.exp()
        counts = [
            seen.counted.sum(dtype=torch.int32),
            _num_above(off, IS_DEVIATION),
            _num_above(seen.far, LOG_RATIO_LIMIT),
            _num_above(-seen.logp, -least),
            _num_above(-seen.behavior, -least),
        ]
        sums = [
            seen.d.sum(),
            seen.moved.sum(),
            torch.dot(seen.d, seen.d),
            gain.sum(),
            off.sum(dtype=torch.float64),
            torch.dot(gain, gain),
            probability.mul_(off).sum(dtype=torch.float64),
            seen.behavior.sum(dtype=torch.float64),
            seen.raw.sum(),
        ]
        tables[0].add_(torch.stack([*counts, *sums]))

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """As they are."""
        return tables[0]

    def answer(self, sums: Sequence[float]) -> Metrics:
        """Everything under ``mismatch/`` that is a function of sums over tokens."""
        n, deviating, guarded, low_current, low_behavior, *moments = sums
        d, distance, squares, gain, off, off_squares, tv, behavior, raw = moments
        mean = d / n
        ratio_squares = max(n + 2 * gain + off_squares, LEAST_SQUARE)
        values = {
            "abs_mean": distance / n,
            "mean": mean,
            "variance": max(squares / n - mean * mean, 0.0),
            "k1": -mean,
            "k2": 0.5 * squares / n,
            "k3": max((gain - d) / n, 0.0),
            "tv": 0.5 * off / n,
            "tv_sampled": tv / n,
            "chi2": off_squares / n,
            "ess": (n + gain) ** 2 / (n * ratio_squares),
            "is_deviation_fraction": deviating / n,
            "guard_fraction": guarded / n,
            "low_prob_current": low_current / n,
            "low_prob_behavior": low_behavior / n,
            "ppl_current": _perplexity(-(behavior + raw) / n),
            "ppl_behavior": _perplexity(-behavior / n),
            "ppl_ratio": _perplexity(-raw / n),
        }
        return {f"mismatch/{name}": Metric(value, "mean", n) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class ResponseMismatch:
    """Averages over the responses of a step, each counted once.

    ``response_abs_mean`` is the mean over responses of their mean ``|d|`` (slime's ``train_rollout_logprob_abs_diff``);
    ``response_ess`` and ``response_chi2`` read ``w = exp(sum_t d_t)``, the ratio of whole responses, within the guard.
    ``delta_intra`` are the updates between a response's first and last version, ``delta_inter`` those from its last
    version to its use (arXiv:2607.22186): the staleness that grew while it was generated, and while it waited.
    ``mismatch/abs_sum_by_staleness``, of ``|d|`` of tokens, is from the same table: divide by ``staleness/histogram``.
    """

    responses: int
    """At most so many a micro-batch."""
    labels: Labels
    """The staleness that tokens of the step have."""

    def tables(self, device: torch.device) -> Tables:
        """By response and staleness the number of tokens and the sum of ``|d|``; by response the sum of ``d``."""
        cells = self.responses * self.labels.size
        return (
            empty_tally(cells, torch.int32, device),
            empty_tally(cells, torch.float64, device),
            empty_tally(cells, torch.float64, device),
        )

    def add(self, seen: Seen, tables: Tables) -> None:
        """One cell a token."""
        cells = torch.add(seen.staleness, seen.sequence.int(), alpha=self.labels.size)
        place = places(cells, seen.lanes)
        for table, values in zip(tables, (seen.counted, seen.moved, seen.raw), strict=True):
            table.scatter_add_(0, place, values)

    def share(self, tables: Tables) -> Float64[Tensor, "K"]:
        """Seven sums over responses that have a trainable token, then tokens and sums of ``|d|`` by staleness."""
        num, moved, raw = (totals(table).view(self.responses, self.labels.size) for table in tables)
        length = num.sum(1)
        alive = length > 0
        gain = torch.expm1(raw.sum(1).clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
        weight = gain + alive
        label = torch.arange(self.labels.low, self.labels.high + 1, dtype=torch.float64, device=num.device)
        least = torch.where(num > 0, label, math.inf).amin(1)
        most = torch.where(num > 0, label, -math.inf).amax(1)
        sums = [
            alive.double().sum(),
            (moved.sum(1) / length.clamp(min=1.0)).sum(),
            gain.square().sum(),
            weight.sum(),
            weight.square().sum(),
            torch.where(alive, most - least, 0.0).sum(),
            torch.where(alive, least, 0.0).sum(),
        ]
        return torch.cat([torch.stack(sums), num.sum(0), moved.sum(0)])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """Each with the number of responses behind it; and the sums of ``|d|`` by staleness."""
        n, moved, off_squares, weight, weight_squares, intra, inter = sums[:7]
        num, distance = sums[7 : 7 + self.labels.size], sums[7 + self.labels.size :]
        by_label = {name: x for name, x, count in zip(self.labels.names(), distance, num, strict=True) if count}
        values = {
            "mismatch/response_abs_mean": moved / n,
            "mismatch/response_ess": weight * weight / (n * weight_squares),
            "mismatch/response_chi2": off_squares / n,
            "staleness/delta_intra": intra / n,
            "staleness/delta_inter": inter / n,
        }
        metrics = {name: Metric(value, "mean", n) for name, value in values.items()}
        return {**metrics, "mismatch/abs_sum_by_staleness": Metric(by_label, "sum", sum(num))}


def _num_above(x: Float[Tensor, "T"], limit: float) -> Float[Tensor, ""]:
    # into float32, not bool: a comparison whose result is as wide as its operands takes a third of the time; and a
    # float32 counts to 2^24, the longest stretch, without rounding
    return torch.gt(x, limit, out=torch.empty_like(x)).sum()


def _perplexity(mean: float) -> float:
    return math.exp(min(mean, LARGEST_EXPONENT))
