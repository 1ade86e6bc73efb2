"""Merging metrics over steps, micro-batches or ranks: any split, and any order where the merge is not ``last``.

A metric carries its own way to merge; nothing is guessed from its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tether.errors import DataError
from tether.records import Metric, Metrics

_PICK: Final[dict[str, Callable[[Sequence[float]], float]]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}


def merge(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """One set of metrics from several; a name missing from a part simply has nothing to add there.

    >>> merge([{"reward/mean": Metric(0.5, count=30.0)}, {"reward/mean": Metric(1.0, count=10.0)}])["reward/mean"]
    Metric(value=0.625, merge='mean', count=40.0)
    >>> merge([{"s": Metric({"8": 3.0}, "sum")}, {"s": Metric({"8": 1.0, "9": 2.0}, "sum")}])["s"].value
    {'8': 4.0, '9': 2.0}
    """
    by_name: dict[str, list[Metric]] = {}
    for part in parts:
        for name, metric in part.items():
            by_name.setdefault(name, []).append(metric)
    return {name: _merge_one(name, by_name[name]) for name in sorted(by_name)}


def _merge_one(name: str, metrics: Sequence[Metric]) -> Metric:
    how = metrics[0].merge
    if len(others := {metric.merge for metric in metrics}) > 1:
        raise DataError(f"metric {name!r} has one merge; got {', '.join(sorted(others))}: give them different names")
    if len({isinstance(metric.value, Mapping) for metric in metrics}) > 1:
        raise DataError(f"metric {name!r} is a number here and a histogram there: give them different names")
    counts = [metric.count for metric in metrics]
    total = math.fsum(counts)
    numbers = [metric.value for metric in metrics if not isinstance(metric.value, Mapping)]
    if numbers:
        return Metric(_combine(how, numbers, counts), how, total)
    histograms = [metric.value for metric in metrics if isinstance(metric.value, Mapping)]
    if how == "last":
        return Metric(dict(histograms[-1]), how, total)
    merged: dict[str, float] = {}
    for label in dict.fromkeys(label for histogram in histograms for label in histogram):
        # a label that a part lacks is a 0 in a mean, and nothing at all in the others
        held = (
            [h.get(label, 0.0) for h in histograms] if how == "mean" else [h[label] for h in histograms if label in h]
        )
        merged[label] = _combine(how, held, counts)
    return Metric(merged, how, total)


def _combine(how: str, values: Sequence[float], counts: Sequence[float]) -> float:
    if how != "mean":
        return float(_PICK[how](values))
    total = math.fsum(counts)
    if total == 0:
        return 0.0  # nothing stands behind it
    return math.fsum(value * (count / total) for value, count in zip(values, counts, strict=True))
