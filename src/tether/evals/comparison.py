"""Several runs held against the first: differences with intervals and p-values, seeds taken together, and doubts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from statistics import NormalDist
from typing import Any, Final

from tether.evals.estimators import Interval
from tether.evals.outcome import Measured, Outcome
from tether.evals.pairing import holm, matched, paired
from tether.evals.student import seeds_mean, welch

FEWEST_SHARED: Final = 10
"""Problems that two runs must share to be compared problem by problem, where the others differ."""
SEED: Final = "run.seed"
PLACES: Final = ("last", "best", "trailing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Of a run, or of several seeds, from the first."""

    value: Interval
    p: float
    adjusted_p: float
    """By Holm's method, over all that are compared with the first."""
    how: str
    """What it rests on, in a few words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs that differ by their seed alone, or one run."""

    label: str
    members: tuple[int, ...]
    """Places among the outcomes."""
    seeds: tuple[str, ...]
    means: Mapping[str, Interval]
    """At ``last``, ``best``, ``trailing``: the mean over seeds with the interval between seeds."""
    difference: Difference | None = None
    """From the first group, where both have several seeds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the runs say side by side."""

    metric: str
    place: str
    """Of what the differences are: ``last``, ``best`` or ``trailing``."""
    outcomes: tuple[Outcome, ...]
    differences: tuple[Difference | None, ...]
    """One for each outcome; ``None`` for the first, and for what cannot be compared with it."""
    groups: tuple[Group, ...]
    """Every outcome is in one; empty if no two runs differ by their seed alone."""
    notes: tuple[str, ...]
    """What must be known to read the numbers."""
    settings: Mapping[str, tuple[str, ...]]
    """Keys of the recipes that are not the same in all runs, and the value in each."""


def compare(outcomes: Sequence[Outcome], metric: str, place: str) -> Comparison:
    """Hold every outcome against the first."""
    first, notes = outcomes[0], _standing(outcomes, place)
    found: list[Difference | None] = [None]
    for other in outcomes[1:]:
        difference, doubts = _difference(first, other, metric, place)
        found.append(difference)
        notes += doubts
    groups = _groups(outcomes, place)
    if groups:
        notes.append(
            "Runs that differ by run.seed alone are one group; its interval is Student's between seeds. An interval of "
            "one run is over problems only, and knows nothing of other seeds."
        )
    return Comparison(
        metric=metric,
        place=place,
        outcomes=tuple(outcomes),
        differences=tuple(_adjusted(found)),
        groups=groups,
        notes=tuple(dict.fromkeys(notes)),
        settings=differing(outcomes),
    )


def _standing(outcomes: Sequence[Outcome], place: str) -> list[str]:
    """Of which runs the numbers are provisional, and where they stand at other steps."""
    notes = ["best is the largest of several noisy numbers, so it is optimistic: do not report it alone."]
    for outcome in outcomes:
        if outcome.state not in ("finished", "evaluated"):
            why = f": {outcome.why.splitlines()[0]}" if outcome.why else ""
            notes.append(f"{outcome.label} is {outcome.state}{why}; its numbers are of what it got done.")
        most = max(len(measured.scores) for measured in outcome.evaluations)
        if 0 < (kept := len(outcome.last.scores)) < most:
            notes.append(
                f"Of {outcome.label} {kept} problems of the last evaluation are on file, and {most} of another: its "
                "evals.jsonl was cut, or samples could not be judged; its last number is of those alone."
            )
    bare = [outcome.label for outcome in outcomes if not outcome.last.scores]
    if bare:
        notes.append(
            f"Of this metric no single problems are on file in {', '.join(bare)}: intervals are those that were "
            "journaled, and differences are unpaired, which makes them wider than need be."
        )
    steps = {outcome.at(place).step for outcome in outcomes}
    if place != "best" and len(steps) > 1:
        at = ", ".join(f"{outcome.label} {outcome.at(place).step}" for outcome in outcomes)
        notes.append(f"The last evaluations are at different steps: {at}.")
    return notes


def _difference(first: Outcome, other: Outcome, metric: str, place: str) -> tuple[Difference | None, list[str]]:
    """The difference, if there is one to take, and what is to be said about it."""
    reasons = unlike(first, other, metric)
    if reasons:
        return None, [f"{other.label} is not compared with {first.label}: {'; '.join(reasons)}."]
    a, b = first.at(place), other.at(place)
    notes = []
    k, other_k = first.protocol.get("k"), other.protocol.get("k")
    if k != other_k:
        notes.append(
            f"Samples a problem: {other_k} in {other.label}, {k} in {first.label}. Both means are unbiased, that of "
            "fewer is noisier."
        )
    if a.scores and b.scores:
        num_shared = len(a.scores.keys() & b.scores.keys())
        is_same = num_shared == len(a.scores) == len(b.scores)
        if is_same or num_shared >= FEWEST_SHARED:
            result = paired(*matched(a.scores, b.scores, shared_only=True))
            if not is_same:
                notes.append(
                    f"{other.label} and {first.label} were not asked the same problems ({len(b.scores)} and "
                    f"{len(a.scores)}); their difference is over the {num_shared} that both were."
                )
            how = f"paired, {result.num_problems} problems"
            return Difference(value=result.difference, p=result.p, adjusted_p=result.p, how=how), notes
        notes.append(
            f"{other.label} and {first.label} share {num_shared} of {len(a.scores)} problems (another seed asks "
            "others): their difference is unpaired."
        )
    difference = unpaired(a, b)
    if difference is None:
        notes.append(f"Of {metric} no interval was journaled, so whether {other.label} differs cannot be told.")
    return difference, notes


def unlike(first: Outcome, other: Outcome, metric: str) -> list[str]:
    """Why two outcomes must not be compared; what only one of them tells is no reason.

    >>> from tether.evals.outcome import Outcome
    >>> one, other = (Outcome(label="", state="", why="", config={}, evaluations=(), view=None,
    ...     references={}, protocol={"task": "aime", "temperature": t}) for t in (1.0, 0.7))
    >>> unlike(one, other, "accuracy")
    ['temperature is 0.7 against 1.0']
    """
    a, b = first.protocol, other.protocol
    names = [name for name in a if name in b and (name != "k" or "maj" in metric)]
    reasons = [f"{name} is {b[name]} against {a[name]}" for name in names if a[name] != b[name]]
    tasks = [_task_of(outcome.config) for outcome in (first, other)]
    if not reasons and all(tasks) and tasks[0] != tasks[1]:
        keys = [key for key in {**tasks[0], **tasks[1]} if tasks[0].get(key) != tasks[1].get(key)]
        reasons = [f"task.{key} is {tasks[1].get(key)} against {tasks[0].get(key)}" for key in keys]
    answers = ((key, first.references[key], other.references.get(key)) for key in first.references)
    others = [(key, one, another) for key, one, another in answers if another not in (None, one)]
    if not reasons and others:
        key, one, another = others[0]
        reasons = [f"the answer to problem {key} is {another!r} against {one!r}, so it is another problem"]
    return reasons


def _task_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """What was asked, whatever was rewarded."""
    task = (config.get("eval") or {}).get("task") or config.get("task") or {}
    return {key: value for key, value in task.items() if key != "reward"}


def unpaired(a: Measured, b: Measured) -> Difference | None:
    """Of two means with intervals of their own (Newcombe 1998, method 10); ``None`` without intervals.

    The p-value is that of a normal deviate as wide as the interval towards 0.

    >>> one, other = (Measured(step=0, value=Interval(*x), scores={}) for x in [(0.5, 0.4, 0.6), (0.7, 0.6, 0.8)])
    >>> found = unpaired(one, other)
    >>> [round(x, 3) for x in found.value], round(found.p, 3)
    ([0.2, 0.059, 0.341], 0.006)
    """
    x, y = a.value, b.value
    if not all(map(math.isfinite, (*x, *y))):
        return None
    value = y.value - x.value
    down, up = math.hypot(y.value - y.low, x.high - x.value), math.hypot(y.high - y.value, x.value - x.low)
    half = down if value > 0 else up
    z = abs(value) / half * 1.96 if half else 0.0
    p = 2 * (1 - NormalDist().cdf(z))
    return Difference(value=Interval(value, value - down, value + up), p=p, adjusted_p=p, how="unpaired")


def _adjusted(found: Sequence[Difference | None]) -> list[Difference | None]:
    compared = [difference for difference in found if difference is not None]
    adjusted = iter(holm([difference.p for difference in compared]))
    return [None if one is None else replace(one, adjusted_p=next(adjusted)) for one in found]


def flat(config: Mapping[str, Any], above: str = "") -> dict[str, str]:
    """Dotted keys and their values as text; what is derived from the others is left out.

    >>> flat({"run": {"seed": 1}, "algorithm": {"kl": None}, "derived": {"doubts": []}})
    {'run.seed': '1', 'algorithm.kl': 'none'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        if not above and key == "derived":
            continue
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{above}{key}.")
        else:
            plain = json.dumps(value, ensure_ascii=False)
            found[f"{above}{key}"] = value if isinstance(value, str) and value else "none" if value is None else plain
    return found


def differing(outcomes: Sequence[Outcome]) -> dict[str, tuple[str, ...]]:
    """Keys that are not the same in all recipes; ``-`` where a run has no such key, or no recipe."""
    tables = [flat(outcome.config) for outcome in outcomes]
    keys = dict.fromkeys(key for table in tables for key in table)
    known = [table for table in tables if table]
    return {key: tuple(table.get(key, "-") for table in tables) for key in keys if len({t.get(key) for t in known}) > 1}


def _groups(outcomes: Sequence[Outcome], place: str) -> tuple[Group, ...]:
    by_setting: dict[str, list[int]] = {}
    for at, outcome in enumerate(outcomes):
        table = flat(outcome.config)
        seedless = json.dumps({key: value for key, value in table.items() if key != SEED}) if table else f"file {at}"
        by_setting.setdefault(seedless, []).append(at)
    groups = [_group(outcomes, members) for members in by_setting.values()]
    if not any(len(set(group.seeds)) > 1 for group in groups):
        return ()
    first = groups[0]
    found: list[Difference | None] = [None]
    for group in groups[1:]:
        is_like = not unlike(outcomes[first.members[0]], outcomes[group.members[0]], "")
        found.append(_between(outcomes, first, group, place) if is_like else None)
    together = zip(groups, _adjusted(found), strict=True)
    return tuple(replace(group, difference=difference) for group, difference in together)


def _group(outcomes: Sequence[Outcome], members: Sequence[int]) -> Group:
    runs = [outcomes[at] for at in members]
    letters = zip(*(run.label for run in runs), strict=False)
    shared = "".join(column[0] for column in takewhile(lambda column: len(set(column)) == 1, letters))
    label = shared.rstrip("-_. /=") or runs[0].label
    means = {place: seeds_mean([run.at(place).value.value for run in runs]) for place in PLACES}
    seeds = tuple(flat(run.config).get(SEED, "-") for run in runs)
    return Group(label=label, members=tuple(members), seeds=seeds, means=means)


def _between(outcomes: Sequence[Outcome], first: Group, other: Group, place: str) -> Difference | None:
    a, b = ([outcomes[at].at(place).value.value for at in group.members] for group in (first, other))
    if min(len(a), len(b)) < 2:
        return None
    found = welch(a, b)
    if found is None:
        return None
    value, p = found
    return Difference(value=value, p=p, adjusted_p=p, how=f"between seeds, {len(b)} against {len(a)}")
