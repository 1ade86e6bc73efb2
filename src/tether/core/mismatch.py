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
from jaxtyping import Float64
from torch import Tensor

from tether.core.ratio import LOG_RATIO_LIMIT
from tether.core.seen import Seen
from tether.records import Metric, Metrics

IS_DEVIATION: Final = 0.2
"""A token deviates if ``|r - 1|`` exceeds this."""
LOW_PROBABILITY: Final = 1e-3
"""A token is improbable if its probability lies below."""
UNREACHED: Final = 1e30
"""Beyond every staleness: what takes an untrainable token out of a minimum."""
LARGEST_EXPONENT: Final = 700.0
"""Of a perplexity: float64 ends at e^709."""


@dataclass(frozen=True, slots=True)
class TokenMismatch:
    """Averages over the tokens of a step.

    ``k1, k2, k3`` estimate KL(behavior || current) by ``-d``, ``d^2/2``, ``e^d - 1 - d`` (Schulman 2020); ``ess`` is
    ``(sum r)^2 / (N sum r^2)``, ``chi2`` ``mean (r - 1)^2``; ``tv`` is ``mean |r - 1| / 2``, an unbiased estimate of
    the total variation, and ``tv_sampled`` ``mean |pi - mu|``, which stays small where improbable tokens move;
    ``variance`` has ddof 0; ``ppl`` are perplexities, ``exp`` of the mean ``-logp``, and ``ppl_ratio`` is
    current / behavior; ``low_prob`` are shares of tokens of probability below 1e-3.
    """

    def share(self, seen: Seen) -> Float64[Tensor, "K"]:
        """Five counts, ten sums."""
        off, ratio = seen.gain.abs(), seen.counted + seen.gain
        least = math.log(LOW_PROBABILITY)
        counts = [
            seen.trainable,
            off > IS_DEVIATION,
            seen.raw.abs() > LOG_RATIO_LIMIT,
            seen.logp < least,
            seen.behavior < least,
        ]
        sums = [
            *(torch.count_nonzero(x) for x in counts),
            seen.d.sum(),
            seen.distance.sum(),
            torch.dot(seen.d, seen.d),
            seen.gain.sum(),
            off.sum(),
            torch.dot(seen.gain, seen.gain),
            torch.dot(ratio, ratio),
            torch.dot(off, seen.behavior.exp().double()),
            seen.behavior.sum(dtype=torch.float64),
            seen.logp.sum(dtype=torch.float64),
        ]
        return torch.stack([x.double() for x in sums])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """Everything under ``mismatch/`` that is a function of sums over tokens."""
        n, deviating, guarded, low_current, low_behavior, *moments = sums
        d, distance, squares, gain, off, off_squares, ratio_squares, tv, behavior, current = moments
        mean = d / n
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
            "ppl_current": _perplexity(-current / n),
            "ppl_behavior": _perplexity(-behavior / n),
            "ppl_ratio": _perplexity((behavior - current) / n),
        }
        return {f"mismatch/{name}": Metric(value, "mean", n) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class ResponseMismatch:
    """Averages over the responses of a step, each counted once.

    ``response_abs_mean`` is the mean over responses of their mean ``|d|`` (slime's ``train_rollout_logprob_abs_diff``);
    ``response_ess`` and ``response_chi2`` read ``w = exp(sum_t d_t)``, the ratio of whole responses, within the guard.
    ``delta_intra`` are the updates between a response's first and last version, ``delta_inter`` those from its last
    version to its use (arXiv:2607.22186): the staleness that grew while it was generated, and while it waited.
    """

    responses: int
    """At most so many a micro-batch."""

    def share(self, seen: Seen) -> Float64[Tensor, "K"]:
        """Seven sums over responses that have a trainable token."""
        ids, stale = seen.tokens.sequence.long(), seen.tokens.staleness.float()
        table = seen.d.new_zeros(self.responses)
        length = table.scatter_add(0, ids, seen.counted)
        moved = table.scatter_add(0, ids, seen.distance)
        gain = torch.expm1(table.scatter_add(0, ids, seen.raw.double()).clamp_(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
        alive = length > 0
        weight = gain + alive
        never = table.float().fill_(math.inf)
        out_of_reach = (~seen.trainable).float() * UNREACHED
        least = never.scatter_reduce(0, ids, stale + out_of_reach, "amin")
        most = (-never).scatter_reduce(0, ids, stale - out_of_reach, "amax")
        sums = [
            alive.sum(),
            (moved / length.clamp(min=1.0)).sum(),
            gain.square().sum(),
            weight.sum(),
            weight.square().sum(),
            torch.where(alive, most - least, 0.0).sum(dtype=torch.float64),
            torch.where(alive, least, 0.0).sum(dtype=torch.float64),
        ]
        return torch.stack([x.double() for x in sums])

    def answer(self, sums: Sequence[float]) -> Metrics:
        """Each with the number of responses behind it."""
        n, moved, off_squares, weight, weight_squares, intra, inter = sums
        values = {
            "mismatch/response_abs_mean": moved / n,
            "mismatch/response_ess": weight * weight / (n * weight_squares),
            "mismatch/response_chi2": off_squares / n,
            "staleness/delta_intra": intra / n,
            "staleness/delta_inter": inter / n,
        }
        return {name: Metric(value, "mean", n) for name, value in values.items()}


def _perplexity(mean: float) -> float:
    return math.exp(min(mean, LARGEST_EXPONENT))
