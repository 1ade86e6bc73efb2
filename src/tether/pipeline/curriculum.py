"""Which prompt of a source is asked next: by pass rates that this run measures, or that its data name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from tether.errors import ConfigError, DataError
from tether.pipeline.pass_rates import PassRates
from tether.records import Group, Metric, Metrics, Prompt

UNKNOWN: Final = 0.5
"""Pass rate of a problem of which nothing is known, for the order."""
MOST_PASSED: Final = 4
"""Times ``choices``: prompts that are asked while one waits, at most."""
EDGES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the histogram of pass rates; 0 and 1 themselves have bins of their own."""

Why = Literal["easy", "hard", "given"]
"""Retired for being always right, or never; or out of range by the pass rate that its data name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumOptions:
    """The ``[curriculum]`` table: what is skipped, and what comes first. Nothing, by default.

    >>> CurriculumOptions().is_off, CurriculumOptions(retire_above=1.0).is_off
    (True, False)
    >>> CurriculumOptions(retire_above=0.2, retire_below=0.4)
    Traceback (most recent call last):
    tether.errors.ConfigError: curriculum.retire_below must lie below retire_above = 0.2, or every problem is retired; \
got 0.4
    """

    retire_above: float | None = None
    """Problems with a measured pass rate of this or more are not asked for a while: 1.0 for those always right."""
    retire_below: float | None = None
    """Those of this or less, likewise: 0.0 for those never right."""
    least_groups: float = 1.5
    """Evidence that it takes, in groups by today's weights; one that is ``half_life`` old counts half."""
    half_life: float = 64.0
    """Optimizer updates after which a group counts half."""
    rest: int = 256
    """Optimizer updates after which a retired problem is asked again."""
    least: float | None = None
    """Problems whose data name a lower pass rate are skipped until one is measured."""
    most: float | None = None
    """Those whose data name a higher one, likewise."""
    order: Literal["uniform", "easy-first", "medium-first"] = "uniform"
    """Of the next prompts: as they come; the highest pass rate p first; or the highest p (1 - p). Nothing is skipped by
    it, one just waits longer than another."""
    choices: int = 8
    """Prompts that an order chooses among."""
    most_skipped: int = 256
    """Prompts skipped in a row after which the one that has rested longest is asked; where none has, the run stops."""

    def __post_init__(self) -> None:
        for name in ("retire_above", "retire_below", "least", "most"):
            rate = getattr(self, name)
            if rate is not None and not 0 <= rate <= 1:
                raise ConfigError(f"curriculum.{name} must be a pass rate in 0 .. 1; got {rate}")
        for name, bound in (("least_groups", 0.01), ("half_life", 1), ("rest", 1), ("choices", 1), ("most_skipped", 1)):
            if getattr(self, name) < bound:
                raise ConfigError(f"curriculum.{name} must be at least {bound}; got {getattr(self, name)}")
        low, high = self.retire_below, self.retire_above
        if low is not None and high is not None and low >= high:
            raise ConfigError(
                f"curriculum.retire_below must lie below retire_above = {high:g}, or every problem is retired; "
                f"got {low:g}"
            )
        if self.least is not None and self.most is not None and self.least > self.most:
            raise ConfigError(
                f"curriculum.least must not be above most = {self.most:g}, or every problem is skipped; got "
                f"{self.least:g}"
            )

    @property
    def retires(self) -> bool:
        """Whether what is measured decides what is skipped."""
        return self.retire_above is not None or self.retire_below is not None

    @property
    def filters(self) -> bool:
        """Whether what the data name decides it."""
        return self.least is not None or self.most is not None

    @property
    def is_off(self) -> bool:
        """Whether every prompt is asked, as it comes."""
        return not (self.retires or self.filters or self.orders)

    @property
    def orders(self) -> bool:
        """Whether one is chosen among several."""
        return self.order != "uniform" and self.choices > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CurriculumState:
    """What a curriculum holds, as plain values."""

    cursor: int
    asked: int
    window: tuple[tuple[int, int], ...]
    known: tuple[tuple[str, float, float, float, int], ...]
    resting: tuple[tuple[str, int, str], ...]
    swept: int
    counts: Mapping[str, int]


class Curriculum:
    """The prompts of a run in the order in which they are asked.

    Feed takes the ``next`` one for each free slot; each finished group is told by ``learn``. What is skipped was never
    admitted: it has no rollout, no slot and no fate, and is counted here.

    Args:
        options: the ``[curriculum]`` table.
        prompts: the source, by index.
        updates: optimizer updates made so far.
    """

    def __init__(
        self, options: CurriculumOptions, prompts: Callable[[int], Prompt], updates: Callable[[], int]
    ) -> None:
        self._options, self._prompts, self._updates = options, prompts, updates
        self._rates = PassRates(options.half_life)
        self._cursor, self._asked, self._swept = 0, 0, 0
        self._window: list[tuple[int, int]] = []  # source index, prompts asked before it came in
        self._resting: dict[str, tuple[int, str]] = {}  # until how many updates, and why
        self._counts = Counter[str]()

    def next(self) -> Prompt:
        """The prompt to ask now."""
        options, updates = self._options, self._updates()
        for place in tuple(self._window):  # what was retired since it came in
            if (why := self._why_not(self._prompts(place[0]), updates)) is not None:
                self._window.remove(place)
                self._counts[f"skipped_{why}"] += 1
        self._fill(options.choices if options.orders else 1, updates)
        place = self._chosen(updates)
        self._window.remove(place)
        self._asked += 1
        return self._prompts(place[0])

    def learn(self, group: Group) -> None:
        """What came of a prompt; rollouts that failed are not in the group and say nothing about it."""
        verdicts = [r.judgement.is_right for r in group.rollouts if r.judgement is not None]
        if not verdicts:
            return
        updates, right, answers = self._updates(), sum(verdicts), len(verdicts)
        self._counts["right"] += right
        self._counts["answers"] += answers
        problem = group.rollouts[0].prompt.problem
        if not problem:
            return
        version = min(int(r.completion.version.min(initial=updates)) for r in group.rollouts)
        self._rates.add(problem, right=right, answers=answers, version=version)
        why = self._retired_for(self._rates.rate(problem))
        if why is None:
            self._resting.pop(problem, None)
        elif self._rates.evidence(problem, updates) >= self._options.least_groups:
            self._resting[problem] = (updates + self._options.rest, why)
        if updates - self._swept >= self._options.half_life:
            self._sweep(updates)

    def take(self) -> Metrics:
        """What happened since it was asked before, and how things stand: ``curriculum/``."""
        updates, counts = self._updates(), self._counts
        resting = Counter(why for until, why in self._resting.values() if until > updates)
        metrics = {
            **{f"skipped_{why}": Metric(float(counts[f"skipped_{why}"]), "sum") for why in ("easy", "hard", "given")},
            "woken": Metric(float(counts["woken"]), "sum"),
            "retired_easy": Metric(float(resting["easy"]), "last"),
            "retired_hard": Metric(float(resting["hard"]), "last"),
            "known": Metric(float(len(self._rates)), "last"),
        }
        if counts["answers"]:
            answers = float(counts["answers"])
            metrics["pass_rate_mean"] = Metric(counts["right"] / answers, "mean", answers)
        for label, count in histogram(self._rates).items():
            metrics[f"pass_rate/{label}"] = Metric(float(count), "last")
        counts.clear()
        return {f"curriculum/{name}": metric for name, metric in metrics.items()}

    def state(self) -> CurriculumState:
        """Everything that decides what comes next."""
        return CurriculumState(
            cursor=self._cursor,
            asked=self._asked,
            window=tuple(self._window),
            known=self._rates.state(),
            resting=tuple((name, until, why) for name, (until, why) in self._resting.items()),
            swept=self._swept,
            counts=dict(self._counts),
        )

    def restore(self, state: CurriculumState) -> None:
        """Go on from a state."""
        self._cursor, self._asked, self._swept = state.cursor, state.asked, state.swept
        self._window = list(state.window)
        self._rates.restore(state.known)
        self._resting = {name: (until, why) for name, until, why in state.resting}
        self._counts = Counter(state.counts)

    def _fill(self, size: int, updates: int) -> None:
        """Let prompts in until there are ``size`` to choose among; an empty window gets one whatever happens."""
        skipped: list[tuple[int, int]] = []  # in a row: until when each rests, and its index
        num_skipped = 0
        while len(self._window) < size and num_skipped < self._options.most_skipped:
            index, prompt = self._cursor, self._prompts(self._cursor)
            self._cursor += 1
            if (why := self._why_not(prompt, updates)) is None:
                self._window.append((index, self._asked))
                num_skipped = 0
                continue
            num_skipped += 1
            self._counts[f"skipped_{why}"] += 1
            if why != "given":
                skipped.append((self._resting[prompt.problem][0], index))
        if self._window:
            return
        if not skipped:
            raise DataError(
                f"a source must hold problems between curriculum.least = {self._options.least} and most = "
                f"{self._options.most}; the last {num_skipped} prompts (curriculum.most_skipped) were all outside, up "
                f"to {self._prompts(self._cursor - 1).id!r}: widen the range, or raise most_skipped"
            )
        _, index = min(skipped)
        self._counts["woken"] += 1
        self._counts[f"skipped_{self._resting[self._prompts(index).problem][1]}"] -= 1
        self._window.append((index, self._asked))

    def _chosen(self, updates: int) -> tuple[int, int]:
        """The best of the window by the order; the oldest where it has waited too long, or where all are alike."""
        oldest = self._window[0]
        if not self._options.orders or self._asked - oldest[1] >= MOST_PASSED * self._options.choices:
            return oldest
        return max(self._window, key=lambda place: self._worth(self._prompts(place[0]), updates))

    def _worth(self, prompt: Prompt, updates: int) -> float:
        prior = UNKNOWN if prompt.pass_rate is None else prompt.pass_rate
        rate = self._rates.guess(prompt.problem, updates, prior)
        return rate if self._options.order == "easy-first" else rate * (1 - rate)

    def _why_not(self, prompt: Prompt, updates: int) -> Why | None:
        """Why a prompt is not asked now; ``None`` if it is."""
        until, why = self._resting.get(prompt.problem, (0, ""))
        if until > updates:
            return "easy" if why == "easy" else "hard"
        given, options = prompt.pass_rate, self._options
        if given is None or self._rates.rate(prompt.problem) is not None:
            return None
        low, high = options.least, options.most
        return "given" if (low is not None and given < low) or (high is not None and given > high) else None

    def _retired_for(self, rate: float | None) -> Why | None:
        low, high = self._options.retire_below, self._options.retire_above
        if rate is not None and high is not None and rate >= high:
            return "easy"
        return "hard" if rate is not None and low is not None and rate <= low else None

    def _sweep(self, updates: int) -> None:
        self._swept = updates
        self._resting = {name: rest for name, rest in self._resting.items() if rest[0] > updates}
        self._rates.forget(updates, self._resting.__contains__)


def histogram(rates: PassRates) -> dict[str, int]:
    """How many problems have which pass rate.

    >>> rates = PassRates(half_life=8.0)
    >>> for number, right in enumerate((0, 1, 4)):
    ...     rates.add(f"p/{number}", right=right, answers=4, version=0)
    >>> histogram(rates)
    {'0': 1, '0-0.25': 0, '0.25-0.5': 1, '0.5-0.75': 0, '0.75-1': 0, '1': 1}
    """
    counts = dict.fromkeys(_labels(), 0)
    bins = tuple(pairwise(EDGES))
    for rate in rates:
        inside = [f"{low:g}-{high:g}" for low, high in bins if low <= rate < high]
        counts[f"{rate:g}" if rate in (0.0, 1.0) else inside[0]] += 1
    return counts


def _labels() -> Iterator[str]:
    yield "0"
    yield from (f"{low:g}-{high:g}" for low, high in pairwise(EDGES))
    yield "1"
