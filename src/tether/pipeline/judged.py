"""What the rewards said of a step: each part apart, and groups that are all right, all wrong, or mixed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import torch

from tether.core.advantage import is_flat
from tether.records import Group, Metric, Metrics, Rollout

Kind = Literal["all_right", "all_wrong", "mixed"]
KINDS: Final[tuple[Kind, ...]] = ("all_right", "all_wrong", "mixed")


def kind_of(group: Group) -> Kind:
    """Whether every rollout of a group is right, none is, or some are, by the part of the reward that decides; one that
    nobody judged is not known to be either.

    A group may be flat, its rewards all equal, and mixed: where the part that decides has no weight, or others undo it.
    """
    right = [rollout.judgement.is_right if rollout.judgement else None for rollout in group.rollouts]
    if all(one is True for one in right):
        return "all_right"
    return "all_wrong" if all(one is False for one in right) else "mixed"


def is_flat_group(group: Group) -> bool:
    """Whether its rewards are all equal."""
    return is_flat(torch.tensor([rollout.reward for rollout in group.rollouts], dtype=torch.float64))


def group_metrics(groups: Sequence[Group]) -> Metrics:
    """Shares of all groups: of each kind, those that are flat, and those that are flat and of each kind.

    ``reward/flat_<kind>`` add up to ``reward/flat_groups_fraction``, and ``reward/groups_<kind>`` to 1.
    """
    all_of_them = [(kind_of(group), is_flat_group(group)) for group in groups]
    n = len(groups)
    metrics = {"reward/flat_groups_fraction": Metric(sum(flat for _, flat in all_of_them) / n, "mean", float(n))}
    for kind in KINDS:
        flat = [is_flat for one, is_flat in all_of_them if one == kind]
        metrics[f"reward/groups_{kind}"] = Metric(len(flat) / n, "mean", float(n))
        metrics[f"reward/flat_{kind}"] = Metric(sum(flat) / n, "mean", float(n))
    return metrics


def part_metrics(rollouts: Sequence[Rollout]) -> Metrics:
    """Of each part by its label, over the rollouts that it was asked about: ``reward/part/<label>``, the mean before
    any weight, and ``reward/status/<label>``, how many met each status, where the reward has such."""
    values: dict[str, list[float]] = {}
    statuses: dict[str, Counter[str]] = {}
    for rollout in rollouts:
        for label, grade in rollout.judgement.grades.items() if rollout.judgement else ():
            values.setdefault(label, []).append(grade.value)
            if grade.status:
                statuses.setdefault(label, Counter())[grade.status] += 1
    means = {f"reward/part/{label}": Metric(sum(of) / len(of), "mean", float(len(of))) for label, of in values.items()}
    counts = {
        f"reward/status/{label}": Metric({status: float(num) for status, num in of.items()}, "sum", float(of.total()))
        for label, of in statuses.items()
    }
    return means | counts
