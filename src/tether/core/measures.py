"""What the tokens of a step looked like: mismatch, clipping, staleness; each one pass and one wait for the device.

``d = logp - logp_behavior`` over trainable tokens, at the weights just before the
update; ``r = exp(d)``; log-ratios after the guard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.loss import LossTerms
from tether.core.ratio import beyond_guard, log_ratio
from tether.core.statistics import AbsoluteQuantile, measure
from tether.core.tokens import TokenBatch
from tether.records import Metric, Metrics

IS_DEVIATION = 0.2
"""A token deviates if ``|r - 1|`` exceeds this."""

Measured = tuple[Float[Tensor, "_"], TokenBatch]


def mismatch(parts: Sequence[Measured]) -> Metrics:
    """How far the current policy stands from the sampled distribution, over ``(logp, tokens)`` of every micro-batch.

    ``k1, k2, k3`` estimate KL(behavior || current) by ``-d``, ``d^2/2``, ``e^d - 1 - d``; ``ess`` is
    ``(sum r)^2 / (N sum r^2)``; ``tv`` is ``mean |r - 1| / 2``; ``variance`` has ddof 0. Empty if no token is
    trainable.
    """
    quantile = AbsoluteQuantile(0.99)
    pairs = [(log_ratio(logp.detach(), t.logp_behavior), t) for logp, t in parts]
    trainable = torch.cat([t.trainable for _, t in pairs])
    # selected by where, not by an index or a product: an index waits for the device, and 0 * NaN is NaN
    d = torch.where(trainable, torch.cat([x for x, _ in pairs]), 0.0).double()
    guarded = torch.cat([beyond_guard(logp.detach(), t.logp_behavior) for logp, t in parts]) & trainable
    n = trainable.sum(dtype=torch.float64)
    r = d.exp()
    off = torch.where(trainable, r - 1, 0.0)
    weights = torch.where(trainable, r, 0.0)
    mean = d.sum() / n
    names = {
        "abs_mean": d.abs().sum() / n,
        "mean": mean,
        "variance": torch.where(trainable, d - mean, 0.0).square().sum() / n,
        "k1": -mean,
        "k2": 0.5 * d.square().sum() / n,
        "k3": (torch.expm1(d) - d).sum() / n,
        "tv": 0.5 * off.abs().sum() / n,
        "chi2": off.square().sum() / n,
        "is_deviation_fraction": (off.abs() > IS_DEVIATION).sum() / n,
        "ess": weights.sum().square() / (n * weights.square().sum()),
        "guard_fraction": guarded.sum() / n,
        "p99": measure(pairs, [quantile])[quantile].double(),
        "max": d.abs().amax() if len(d) else mean,
    }
    count, *values = torch.stack([n, *(value.double() for value in names.values())]).tolist()
    if not count:
        return {}
    return {
        f"mismatch/{name}": Metric(value, "max" if name == "max" else "mean", count)
        for name, value in zip(names, values, strict=True)
    }


def clipping(terms: Sequence[LossTerms], num_tokens: int) -> Metrics:
    """Share of trainable tokens denied a gradient, in all and among them those that had moved outward; rule marks."""
    n = float(max(num_tokens, 1))
    sums = [_total([t.active for t in terms]), _total([t.outward & ~t.active for t in terms])]
    names = sorted(terms[0].marks)
    for name in names:
        marks = [t.marks[name] for t in terms]
        sums += [_total([torch.where(m.among, m.value, 0) for m in marks]), _total([m.among for m in marks])]
    active, outward, *rest = torch.stack(sums).tolist()
    metrics = {
        "clip/fraction": Metric((num_tokens - active) / n, "mean", n),
        "clip/outward_fraction": Metric(outward / n, "mean", n),
    }
    for name, total, weight in zip(names, rest[::2], rest[1::2], strict=True):
        if weight > 0:
            metrics[name] = Metric(total / weight, "mean", weight)
    return metrics


def _total(pieces: Sequence[Tensor]) -> Float[Tensor, ""]:
    """Sum over all micro-batches in float64: float32 cannot count beyond 2^24."""
    return torch.stack([piece.sum(dtype=torch.float64) for piece in pieces]).sum()


def staleness(tokens: Sequence[TokenBatch]) -> Metrics:
    """Mean, maximum and histogram of staleness over trainable tokens, in optimizer updates."""
    values = torch.cat([t.staleness[t.trainable] for t in tokens]).tolist()
    if not values:
        return {}
    counts = Counter(values)
    n = float(len(values))
    return {
        "staleness/mean": Metric(sum(values) / n, "mean", n),
        "staleness/max": Metric(float(max(values)), "max", n),
        "staleness/histogram": Metric({str(k): float(counts[k]) for k in sorted(counts)}, "sum", n),
    }
