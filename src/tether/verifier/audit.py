"""Where two modes of the verifier disagree over the same answers: a fault of one of them is a corrupted gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from .verdict import Mode, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One answer that some modes call right and others do not."""

    index: int
    """Place of the pair among those judged, from 0."""
    by_mode: Mapping[Mode, Verdict]
    """What each mode said of it."""


def disagreements(verdicts: Mapping[Mode, Sequence[Verdict]]) -> list[Disagreement]:
    """The pairs over which the modes differ in whether the answer is right, in the order of the pairs.

    Two ways of being not right are no disagreement: ``timeout`` in one mode and ``wrong`` in another pay the same.

    >>> right, wrong = (Verdict(status=s, extracted="2", stage="") for s in ("correct", "wrong"))
    >>> [found.index for found in disagreements({"robust": [right, wrong, wrong], "upstream": [right, right, wrong]})]
    [1]
    """
    return [
        Disagreement(index=index, by_mode={mode: verdicts[mode][index] for mode in verdicts})
        for index in range(num_pairs(verdicts))
        if len({seen[index].is_correct for seen in verdicts.values()}) > 1
    ]


def agreement(verdicts: Mapping[Mode, Sequence[Verdict]]) -> Mapping[tuple[Mode, Mode], float]:
    """For each two modes the share of pairs over which they agree whether the answer is right; 1 over no pairs at all.

    >>> right, wrong = (Verdict(status=s, extracted="2", stage="") for s in ("correct", "wrong"))
    >>> agreement({"robust": [right, wrong], "upstream": [right, right]})
    {('robust', 'upstream'): 0.5}
    """
    pairs = num_pairs(verdicts)
    return {
        (one, other): same(verdicts[one], verdicts[other]) / pairs if pairs else 1.0
        for one, other in combinations(verdicts, 2)
    }


def same(one: Sequence[Verdict], other: Sequence[Verdict]) -> int:
    """Over how many pairs two modes agree."""
    return sum(a.is_correct == b.is_correct for a, b in zip(one, other, strict=True))


def num_pairs(verdicts: Mapping[Mode, Sequence[Verdict]]) -> int:
    """How many pairs were judged: every mode has seen the same ones."""
    counts = {mode: len(seen) for mode, seen in verdicts.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{mode} {count}" for mode, count in counts.items())
        raise ValueError(f"modes are compared over the same pairs, and these judged {told}: grade every pair in each")
    return next(iter(counts.values()), 0)
