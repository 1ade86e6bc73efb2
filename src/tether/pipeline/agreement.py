"""Whether an engine holds what was published: its log-probabilities against the trainer's. Arithmetic on numbers alone.

Two sides that hold the same weights still differ, by what number formats and kernels do. How much depends on the model,
on how sharp it has become and on the tokens, so this floor is measured on the very tokens that are judged: the trainer
computes them in the narrow format and in float32. A wrong publication is many floors away.

With ``d = logp of the trainer - logp of the engine``, a distance is the mean of ``|d|``, in nats, without the 2 % of
tokens that are farthest apart: rounding may send a token to another expert, and one such token would outweigh all
others, in the distance or in the floor it is held against. Many tokens that are a little off and a few that are far off
have one mean, so the spread is held against a floor as well: the ``|d|`` that 95 % of the tokens do not exceed, against
the farthest that number formats bring any token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tether.errors import ConfigError
from tether.pipeline.scoring import Logps, Scores
from tether.pipeline.suspicion import COARSE, SHIFTED, is_coarse, shift_of
from tether.records import Metric, Metrics

LEAST_FLOOR = {"bfloat16": 5e-4, "float32": 1e-5}
"""Nats, by dtype: the floor where less is measured, or where there is no wider format to measure with. What was
measured stands in docs/decisions/0016-self-checks.md."""
DECIDABLE = 2.0
"""Floors that two publications must be apart before it can be told which of them an engine holds."""
LEAST_PROGRESS = 0.5
"""Of the way from the publication before to this one: below it the engine is nearer to the one before."""
LARGEST = 20.0
"""Where ``|d|`` is cut before ``exp``."""
LEFT_OUT = 0.02
"""Share of tokens, the farthest apart, that a distance leaves out."""
NEAR_ONE = (0.9, 1.1)
"""Ratios outside are the tail."""
SPREAD = (0.95, 1.0)
"""Quantiles of ``|d|``: the engine's is held against the farthest token of the floor. Tokens change their expert in
lots: one that does in a prompt moves all tokens of the four answers to it, an eighth of those that are looked at, and
on the other side that prompt may keep its experts while another loses them."""
LEAST_SPREAD = 4.0
"""Least floors that the floor of the spread is at least: of 256 normal numbers the farthest is 3.5 times their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """The ``[checks]`` table: what the engine is asked after each publication, to prove that it holds it."""

    prompts: int = 8
    """Training prompts answered for the comparison with the trainer, four times each and the same each time; fewer
    where a glance is enough; 0 compares nothing."""
    tokens: int = 8
    """Most tokens of such an answer."""
    tolerance: float = 3.0
    """Largest distance, in measured floors; more for an engine whose arithmetic is coarser than its dtype says."""

    def __post_init__(self) -> None:
        for name, least, most in (("prompts", 0, 10**4), ("tokens", 1, 10**4), ("tolerance", 1.0, 1e6)):
            if not least <= (value := getattr(self, name)) <= most:
                raise ConfigError(f"checks.{name} must lie in {least:g} .. {most:g}; got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """How near the engine's numbers are to the trainer's, and to which version's.

    >>> this, before = np.zeros(4, np.float32), np.full(4, 0.3, np.float32)
    >>> scores = Scores(published=this, previous=before, current=None, wider=this + 0.01, narrower=None, apart=None)
    >>> asked = {"scores": scores, "dtypes": ("bfloat16", "float32"), "tolerance": 40.0, "lengths": (4,)}
    >>> held = Agreement(engine=this + 0.003, **asked)
    >>> round(held.floor, 4), held.is_decidable, round(held.progress, 4), held.fault()
    (0.01, True, 1.0241, None)
    >>> Agreement(engine=before, **asked).fault()
    ('nearest', 'the engine stands 0% of the way from the version before to this one, |d| = 0.3 apart')
    """

    engine: Logps
    """What the engine reported."""
    scores: Scores
    """What the trainer computed of the same tokens."""
    dtypes: tuple[str, str]
    """Of the engine and of the trainer."""
    tolerance: float
    """Floors."""
    lengths: tuple[int, ...]
    """Tokens of each completion, in their order."""

    @property
    def floor(self) -> float:
        """Distance that the engine's number format and its kernels alone make, measured on these tokens."""
        others = (distance(self.scores.published, one) for one in self._others)
        return max(LEAST_FLOOR[self.dtypes[0]], *others)

    @property
    def spread_floor(self) -> float:
        """The ``|d|`` that number format and kernels keep all tokens within."""
        least = LEAST_SPREAD * LEAST_FLOOR[self.dtypes[0]]
        return max(least, *(spread(self.scores.published, one, SPREAD[1]) for one in self._others))

    @property
    def tail_floor(self) -> float:
        """Share of tokens that number format and kernels bring off 1 by more than a tenth. To be read beside the
        engine's, not judged by: it grows faster than distances do. Two sides with independent errors are ``sqrt(2)``
        floors apart, and where normal errors make 3 % of the ratios so, 12 % then are.
        """
        return max(tail(self.scores.published, one) for one in self._others)

    @property
    def _others(self) -> tuple[Logps | None, ...]:
        """The published weights, computed otherwise than as they are published."""
        return self.scores.wider, self.scores.apart

    @property
    def trainer_floor(self) -> float:
        """Distance that the formats of both sides make: of the arithmetic, and of the weights that were rounded."""
        formats = [self.floor, LEAST_FLOOR[self.dtypes[1]], distance(self.scores.published, self.scores.narrower)]
        return max(formats) * (1.0 if self.dtypes[0] == self.dtypes[1] else 2.0)

    @property
    def apart(self) -> float:
        """Distance between engine and published weights, these in the published dtype."""
        return distance(self.scores.published, self.engine)

    @property
    def moved(self) -> float:
        """Distance between this publication and the one before, both by the trainer; 0 if there is none."""
        return distance(self.scores.published, self.scores.previous)

    @property
    def is_decidable(self) -> bool:
        """Whether the publications are far enough apart to tell which of them the engine holds."""
        return self.moved > DECIDABLE * self.floor

    @property
    def progress(self) -> float:
        """Where the engine's numbers lie on the line from the publication before (0) to this one (1).

        It is the point ``1 - b`` nearest in mean ``|d|``: ``b`` minimizes ``sum |e - b x|``, with ``e`` and ``x`` the
        distances of the engine and of the earlier publication from this one, as the median of ``e / x`` weighted by
        ``|x|`` does.

        Rounding of the published numbers is in both ``e`` and ``x`` and makes a sound engine with kernels of its own
        look as if it lagged; measured from the wider format it is in neither. The better of both counts: an engine
        that holds the version before is near it by either.
        """
        references = [self.scores.published, self.scores.wider]
        return max(self._progress(one) for one in references if one is not None)

    def _progress(self, published: Logps) -> float:
        assert self.scores.previous is not None
        x = self.scores.previous.astype(np.float64) - published
        moved = x != 0
        slope = (self.engine.astype(np.float64) - published)[moved] / x[moved]
        order = np.argsort(slope)
        weight = np.abs(x[moved])[order].cumsum()
        return 1.0 - float(slope[order][np.searchsorted(weight, weight[-1] / 2)])

    @property
    def ratio_deviation(self) -> float:
        """How far the ratio is off 1 under the weights being trained, in which the data are fresh."""
        if self.scores.current is None:
            return 0.0
        d = self.scores.current.astype(np.float64) - self.engine
        return trimmed_mean(np.expm1(d.clip(-LARGEST, LARGEST)))

    def allows(self, logp: Logps | None) -> bool:
        """Whether the engine's numbers could be these."""
        return logp is not None and distance(logp, self.engine) <= self.tolerance * self.floor

    @property
    def spread(self) -> float:
        """The ``|d|`` that 95 % of the tokens do not exceed."""
        return spread(self.scores.published, self.engine, SPREAD[0])

    @property
    def tail(self) -> float:
        """Share of tokens whose ratio is off 1 by more than a tenth."""
        return tail(self.scores.published, self.engine)

    def fault(self) -> tuple[str, str] | None:
        """Name of the first check that fails, and its numbers."""
        if is_coarse(self.engine):
            return "precision", COARSE
        if shift_of(self.engine, self.scores.published, self.lengths):
            return "alignment", SHIFTED
        if not self.allows(self.scores.published):
            return "agreement", (
                f"the engine is |d| = {self.apart:.3g} from the trainer with the published weights in "
                f"{self.dtypes[0]}; number formats explain {self.floor:.2g}, {self.tolerance:g} times that is allowed"
            )
        if self.is_decidable and not self.progress >= LEAST_PROGRESS:
            return "nearest", (
                f"the engine stands {self.progress:.0%} of the way from the version before to this one, |d| = "
                f"{self.moved:.3g} apart"
            )
        if (told := self._spread_fault()) is not None:
            return "spread", told
        if not self.ratio_deviation <= self.tolerance * self.trainer_floor:
            return "ratio", (
                f"the engine holds what was published, yet under the weights being trained, in {self.dtypes[1]}, the "
                f"ratio of fresh data is off 1 by {self.ratio_deviation:.3g}; number formats explain "
                f"{self.trainer_floor:.2g}, {self.tolerance:g} times that is allowed"
            )
        return None

    def _spread_fault(self) -> str | None:
        """What is wrong with the tokens that are farthest apart, though the mean is as it should be."""
        most = self.tolerance * self.spread_floor
        if not self.spread <= most:
            return (
                f"the mean |d| is as it should be, {self.apart:.3g}, yet one token in twenty is |d| = "
                f"{self.spread:.3g} or more from the trainer with the published weights; number formats explain "
                f"{self.spread_floor:.2g}, {self.tolerance:g} times that is allowed"
            )
        return None

    def metrics(self) -> Metrics:
        """For the journal."""
        n = float(len(self.engine))
        metrics = {
            "probe/abs_d_mean": Metric(self._mean(self.scores.published), "mean", n),
            "probe/distance": Metric(self.apart, "mean", n),
            "probe/floor": Metric(self.floor, "mean", n),
            "probe/allowed": Metric(self.tolerance * self.floor, "mean", n),
            "probe/p95": Metric(self.spread, "max"),
            "probe/p95_allowed": Metric(self.tolerance * self.spread_floor, "max"),
            "probe/tail_fraction": Metric(self.tail, "mean", n),
            "probe/tail_floor": Metric(self.tail_floor, "mean", n),
        }
        if self.scores.current is not None:
            metrics["probe/abs_d_trained"] = Metric(self._mean(self.scores.current), "mean", n)
            metrics["probe/ratio_deviation"] = Metric(self.ratio_deviation, "mean", n)
        if self.scores.previous is not None:
            metrics["probe/abs_d_previous"] = Metric(self._mean(self.scores.previous), "mean", n)
            metrics["probe/moved"] = Metric(self.moved, "mean", n)
            metrics["probe/is_undecided"] = Metric(float(not self.is_decidable), "sum")
        if self.is_decidable:
            metrics["probe/progress"] = Metric(self.progress, "mean", n)
        return metrics

    def _mean(self, logp: Logps) -> float:
        return float(np.abs(logp.astype(np.float64) - self.engine).mean())


def distance(one: Logps | None, other: Logps | None) -> float:
    """Trimmed mean of ``|d|``; 0 where there is nothing to compare."""
    if one is None or other is None or not len(one):
        return 0.0
    return trimmed_mean(one.astype(np.float64) - other)


def spread(one: Logps | None, other: Logps | None, level: float) -> float:
    """The ``|d|`` that a share ``level`` of the tokens do not exceed; 0 where there is nothing to compare.

    >>> spread(np.zeros(20, np.float32), np.arange(20).astype(np.float32), 0.95)
    18.0
    """
    if one is None or other is None or not len(one):
        return 0.0
    d = np.sort(np.abs(one.astype(np.float64) - other))
    return float(d[math.ceil(level * len(d)) - 1]) if np.isfinite(d).all() else math.nan


def tail(one: Logps | None, other: Logps | None) -> float:
    """Share of tokens whose ratio is not ``NEAR_ONE``; 0 where there is nothing to compare.

    >>> tail(np.zeros(4, np.float32), np.array([0.0, 0.05, 0.2, -0.2], np.float32))
    0.5
    """
    if one is None or other is None or not len(one):
        return 0.0
    ratio = np.exp((one.astype(np.float64) - other).clip(-LARGEST, LARGEST))
    return float(((ratio < NEAR_ONE[0]) | (ratio > NEAR_ONE[1])).mean())


def trimmed_mean(values: NDArray[np.float64]) -> float:
    """Mean of the absolute values without the largest ``LEFT_OUT`` of them; NaN if any is NaN.

    >>> trimmed_mean(np.array([-1.0] * 49 + [1000.0]))
    1.0
    """
    kept = math.ceil(len(values) * (1.0 - LEFT_OUT))
    return float(np.sort(np.abs(values))[:kept].mean()) if np.isfinite(values).all() else math.nan
