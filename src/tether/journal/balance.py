"""Whether the books of a run close: every rollout admitted has one fate, and what was trained is what the steps say.

Read from the files alone, so that it also finds what a writer would never have written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from tether.journal.ledger import LedgerLine
from tether.journal.reader import RunView
from tether.records import Event

MOST_NAMED: Final = 3
"""Examples that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Completion tokens of some rollouts whose sampling is known of.

    >>> Lengths.of([2, 4, 12])
    Lengths(count=3, mean=6.0, p50=4.0, p90=12.0)
    """

    count: int
    mean: float
    p50: float
    p90: float

    @classmethod
    def of(cls, tokens: Sequence[int]) -> Lengths | None:
        """Their mean, and the lengths that half and nine tenths of them do not exceed; ``None`` of nothing."""
        if not tokens:
            return None
        p50, p90 = np.quantile(np.array(tokens, np.float64), [0.5, 0.9], method="inverted_cdf")
        return cls(count=len(tokens), mean=float(np.mean(tokens)), p50=float(p50), p90=float(p90))


@dataclass(frozen=True, slots=True, kw_only=True)
class FateSum:
    """The rollouts of one fate."""

    fate: str
    rollouts: int
    share: float
    """Of the rollouts admitted."""
    tokens: int
    token_share: float
    """Of the tokens known of."""
    lengths: Lengths | None
    to_trained: float | None
    """Mean length over that of trained rollouts: above 1, what met this fate was longer than what was trained."""


@dataclass(frozen=True)
class Balance:
    """The books of a run, as its files have them."""

    run: RunView
    is_written: bool = False
    """Whether a process is writing the run."""

    @cached_property
    def lines(self) -> tuple[LedgerLine, ...]:
        """The ledger, read after what it must hold: a run that goes on may be read."""
        for _ in (self.run.events, self.run.rollouts):
            pass
        return self.run.ledger

    @property
    def ended(self) -> Event | None:
        """The event that says that the run is over."""
        is_over = self.run.status != "unfinished"
        return next((e for e in reversed(self.run.events) if e.event in ("finish", "fail")), None) if is_over else None

    @cached_property
    def admitted(self) -> int:
        """Rollouts admitted: as the steps counted them, or as many as have a line if that is more."""
        return max(self.told_admitted or 0, len({line.id for line in self.lines}))

    @cached_property
    def told_admitted(self) -> int | None:
        """What the events say last; ``None`` in runs that do not."""
        told = [_number(event, "ledger/admitted") for event in self.run.events]
        return next((int(number) for number in reversed(told) if number is not None), None)

    @property
    def open(self) -> int:
        """Rollouts that have no fate: of a run that is over, lost ones."""
        return self.admitted - len({line.id for line in self.lines})

    @cached_property
    def fates(self) -> tuple[FateSum, ...]:
        """By fate: trained first, then by name."""
        by_fate: defaultdict[str, list[LedgerLine]] = defaultdict(list)
        for line in self.lines:
            by_fate[line.fate].append(line)
        all_tokens = sum(line.num_completion_tokens for line in self.lines)
        trained = Lengths.of(_known(by_fate["trained"]))
        sums = []
        for fate in sorted((fate for fate in by_fate if by_fate[fate]), key=lambda fate: (fate != "trained", fate)):
            lengths, tokens = (
                Lengths.of(_known(by_fate[fate])),
                sum(line.num_completion_tokens for line in by_fate[fate]),
            )
            is_comparable = lengths is not None and trained is not None and trained.mean > 0
            sums.append(
                FateSum(
                    fate=fate,
                    rollouts=len(by_fate[fate]),
                    share=len(by_fate[fate]) / self.admitted,
                    tokens=tokens,
                    token_share=tokens / all_tokens if all_tokens else 0.0,
                    lengths=lengths,
                    to_trained=lengths.mean / trained.mean if is_comparable and lengths and trained else None,
                )
            )
        return tuple(sums)

    @cached_property
    def dropped(self) -> Lengths | None:
        """Lengths of what was finished, or begun, and never trained because it was filtered, evicted, or failed."""
        return Lengths.of(_known(line for line in self.lines if ":" in line.fate))

    @property
    def bias(self) -> str | None:
        """How much longer or shorter what was dropped was than what was trained, in a sentence."""
        trained = next((fate.lengths for fate in self.fates if fate.fate == "trained"), None)
        if trained is None or self.dropped is None or not trained.mean:
            return None
        return (
            f"what was dropped or lost had {self.dropped.mean / trained.mean:.2f} x the length of what "
            f"was trained (mean {self.dropped.mean:.1f} against {trained.mean:.1f} tokens)"
        )

    @cached_property
    def duplicates(self) -> tuple[str, ...]:
        """Ids that have more than one line."""
        return tuple(id for id, count in Counter(line.id for line in self.lines).items() if count > 1)

    @cached_property
    def unused_prompts(self) -> tuple[str, ...]:
        """Prompts that were asked, and no rollout of which was trained."""
        trained = {line.prompt_id for line in self.lines if line.fate == "trained"}
        return tuple(dict.fromkeys(line.prompt_id for line in self.lines if line.prompt_id not in trained))

    @cached_property
    def faults(self) -> tuple[str, ...]:
        """Why the books do not close; empty if they do."""
        return tuple(self._faults())

    def _faults(self) -> Iterator[str]:
        for gap in self.run.gaps:
            if not gap.is_torn or self.ended is not None:
                yield str(gap)
        if self.duplicates:
            yield f"{_counted(self.duplicates, 'rollout')} more than one fate: {_some(self.duplicates)}."
        yield from self._of_the_end()
        ids = {line.id for line in self.lines}
        if unknown := [s for s in dict.fromkeys(sample.id for sample in self.run.rollouts) if s not in ids]:
            yield f"{_counted(unknown, 'stored sample')} no line in the ledger: {_some(unknown)}."
        yield from self._of_the_steps()

    def _of_the_end(self) -> Iterator[str]:
        if self.ended is None:
            if not self.is_written:
                how_many = "its open rollouts are" if self.told_admitted is None else f"{self.open:,} rollouts are"
                yield (
                    f"The run is neither finished nor stopped, and no process writes it: it was killed, and {how_many} "
                    f"without a fate. Resume it: tether train --resume {self.run.folder}"
                )
            return
        if self.open:
            yield f"{self.open:,} of {self.admitted:,} rollouts admitted have no fate, though the run is over."
        at_end = _number(self.ended, "ledger/admitted")
        if at_end is not None and at_end < self.admitted:
            yield f"The run says that it admitted {at_end:,.0f} rollouts; the ledger has {self.admitted:,}."
        told = self.ended.metrics.get("ledger/balance")
        if told is not None and isinstance(told.value, Mapping) and told.value != self.run.balance():
            yield (
                f"The run ended with {_listed(told.value)}; the ledger has {_listed(self.run.balance()) or 'no line'}: "
                "lines are missing, or there are too many."
            )
        size = _group_size(self.run.config)
        sizes = Counter(line.group for line in self.lines)
        if short := [group for group, count in sizes.items() if count < size]:
            yield f"{_counted(short, 'group')} less than the {size} rollouts that a group has: {_some(short)}."

    def _of_the_steps(self) -> Iterator[str]:
        """Steps that trained another number of rollouts than the ledger says. Lines come before their step."""
        by_step = Counter(line.step for line in self.lines if line.fate == "trained")
        told: Counter[int] = Counter()
        for event in self.run.events:
            if event.event in ("step", "skip") and (trained := _number(event, "ledger/trained")) is not None:
                told[event.step] += int(trained)
        for step in sorted(told):
            if told[step] != by_step[step]:
                yield (
                    f"Step {step} trained {told[step]:,} rollouts, and the ledger has {by_step[step]:,} that were "
                    "trained in it."
                )
                return


def _known(lines: Iterable[LedgerLine]) -> list[int]:
    """Lengths of those of which it is known what was sampled."""
    return [line.num_completion_tokens for line in lines if (line.sampled_s, line.finished_s) != (None, None)]


def _number(event: Event, name: str) -> float | None:
    value = event.metrics[name].value if name in event.metrics else None
    return None if isinstance(value, Mapping) else value


def _group_size(config: Mapping[str, object]) -> int:
    """Rollouts of a group; 0 where the config does not say."""
    pipeline = config.get("pipeline")
    size = pipeline.get("group_size") if isinstance(pipeline, Mapping) else None
    return size if isinstance(size, int) else 0


def _counted(things: Sequence[str], what: str) -> str:
    return f"{len(things):,} {what}{' has' if len(things) == 1 else 's have'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


def _listed(counts: Mapping[str, int | float]) -> str:
    return ", ".join(f"{fate} {count:,.0f}" for fate, count in counts.items())
