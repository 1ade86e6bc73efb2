"""What the evaluations of a run say together: gain, best, last, trailing."""

from __future__ import annotations

from dataclasses import dataclass

from tether.evals.at_k import average_of_each
from tether.evals.estimators import Interval, num_trailing, paired_difference, trailing
from tether.evals.evaluation import Evaluation
from tether.evals.pairing import paired
from tether.records import Metric, Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The evaluations of a run so far: the accuracy of each, and the first and the last whole.

    The best of many noisy numbers is optimistic, and hides a collapse that came after it: beside it stand the last,
    and the mean of the last quarter, ``ceil(n / 4)`` of them.
    """

    points: tuple[tuple[int, float], ...] = ()
    """Step and accuracy (avg@k), in order."""
    first: Evaluation | None = None
    last: Evaluation | None = None

    def with_next(self, step: int, evaluation: Evaluation) -> History:
        """One evaluation more."""
        points = (*self.points, (step, evaluation.mean))
        return History(points=points, first=self.first or evaluation, last=evaluation)

    def metrics(self) -> Metrics:
        """For the end of the run; empty without an evaluation."""
        if not self.points:
            return {}
        values = [value for _, value in self.points]
        best_step, best = max(self.points, key=lambda point: point[1])  # of equals the first
        n = float(len(values))
        found = {
            "eval/best": Metric(best, "last", n),
            "eval/best_step": Metric(float(best_step), "last"),
            "eval/last": Metric(values[-1], "last"),
            "eval/trailing": Metric(trailing(values), "last", float(num_trailing(len(values)))),
        }
        return {**found, **self._gain()}

    def _gain(self) -> Metrics:
        """Accuracy before and after with the paired interval of their difference, where the same was asked."""
        first, last = self.first, self.last
        if len(self.points) < 2 or first is None or last is None:
            return {}
        if first.keys != last.keys:  # a file of problems that was changed before the run went on
            return {}
        known = first.judged.any(1) & last.judged.any(1)
        if not known.any():
            return {}
        gain, n = gain_of(first, last), float(known.sum())
        return {
            "eval/accuracy_before": Metric(first.accuracy.value, "last", n),
            "eval/accuracy_after": Metric(last.accuracy.value, "last", n),
            "eval/accuracy_gain": Metric(gain.value, "last", n),
            "eval/accuracy_gain_low": Metric(gain.low, "last", n),
            "eval/accuracy_gain_high": Metric(gain.high, "last", n),
        }


def gain_of(first: Evaluation, last: Evaluation) -> Interval:
    """How much better the last is, problem by problem, over those that both judged."""
    if first.protocol.samples == 1:
        known = (first.judged & last.judged).all(1)
        return paired_difference(first.correct[known, 0], last.correct[known, 0])
    before, after = (average_of_each(one.correct, one.judged) for one in (first, last))
    return paired(before, after).difference
