"""How the evaluations of a run are summed up in words: the best one never without what came after it."""

from __future__ import annotations

from collections.abc import Mapping

from tether.records import Metrics

NAMES = ("eval/best", "eval/best_step", "eval/last", "eval/trailing")


def best_last_trailing(metrics: Metrics) -> str | None:
    """A sentence from the metrics of a ``finish`` event; ``None`` where there were fewer than three evaluations.

    >>> from tether.records import Metric
    >>> values = dict(zip(NAMES, (Metric(0.9, "last", 5.0), Metric(4.0), Metric(0.1), Metric(0.2)), strict=True))
    >>> print(best_last_trailing(values))
    best 0.900 at step 4, last 0.100, last quarter 0.200 (the best of 5 evaluations is optimistic)
    """
    numbers = [metrics[name].value for name in NAMES if name in metrics]
    if len(numbers) < len(NAMES) or metrics["eval/best"].count < 3:
        return None
    best, step, last, trailing = (0.0 if isinstance(value, Mapping) else value for value in numbers)
    return (
        f"best {best:.3f} at step {int(step)}, last {last:.3f}, last quarter {trailing:.3f} "
        f"(the best of {int(metrics['eval/best'].count)} evaluations is optimistic)"
    )
