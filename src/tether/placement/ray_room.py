"""Where on a cluster the processes of a run have room: set aside for all of them at once, or the run does not begin."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from tether.errors import ConfigError

Spread = Literal["pack", "spread"]
Bundle = Mapping[str, float]
"""What Ray sets aside for a process: CPUs, and GPUs or parts of one."""
FINEST = 10_000
"""Parts into which Ray can divide a GPU."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bundles that are there, by role."""

    group: Any
    """Ray's placement group."""
    bundles: Mapping[str, Bundle]

    def of(self, role: str, threads: int) -> dict[str, Any]:
        """On which terms Ray starts an actor: in its bundle, and with an environment that torch reads on import."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self.bundles[role]
        return {
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0.0),
            "runtime_env": {"env_vars": environment(threads)},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=list(self.bundles).index(role)
            ),
        }


@contextmanager
def room(bundles: Mapping[str, Bundle], spread: Spread, within_s: float) -> Iterator[Room]:
    """Set bundles aside, a role each, for as long as the block lasts; on few nodes or on many.

    Ray finds another node for the bundles of one that dies, if there is room.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([dict(bundle) for bundle in bundles.values()], strategy=spread.upper())
    try:
        if not group.wait(within_s):
            alive: Any = ray.nodes
            nodes = [node["Resources"] for node in alive() if node["Alive"]]
            free: Bundle = ray.available_resources()  # type: ignore[no-untyped-call]
            raise ConfigError(
                f"the parts of this run must find room: {_sum(*bundles.values())}, in pieces {_told(bundles)}. Within "
                f"placement.deadlines.start_s = {within_s:g} seconds there was none; Ray has {_sum(*nodes)} on "
                f"{len(nodes)} nodes, of which {_sum(free)} are free: add nodes (ray start --address), or lower "
                "placement.engines, placement.reward_workers or placement.threads"
            )
        yield Room(group, bundles)
    finally:
        remove_placement_group(group)


def environment(threads: int) -> dict[str, str]:
    """Variables of a process that has so many threads for torch."""
    return {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}


def shares(models: int, num_gpus: float) -> tuple[float, float]:
    """GPUs of the learner, and of each other process that holds a model: one each, or equal parts of what there is.

    >>> shares(3, 8.0), shares(3, 2.0), shares(3, 1.0)
    ((1.0, 1.0), (1.0, 0.5), (0.3333, 0.3333))
    """
    if num_gpus >= models:
        return 1.0, 1.0
    if num_gpus < 2:
        share = math.floor(FINEST * num_gpus / models) / FINEST
        return share, share
    on_one = math.ceil((models - 1) / (int(num_gpus) - 1))
    return 1.0, math.floor(FINEST / on_one) / FINEST


def _sum(*bundles: Bundle) -> str:
    """CPUs and GPUs in all.

    >>> _sum({"CPU": 2.0, "GPU": 0.5}, {"CPU": 1.0})
    '3 CPUs and 0.5 GPUs'
    """
    return " and ".join(f"{sum(bundle.get(what, 0.0) for bundle in bundles):g} {what}s" for what in ("CPU", "GPU"))


def _told(bundles: Mapping[str, Bundle]) -> str:
    """Each, by role.

    >>> _told({"learner": {"CPU": 2.0}, "reward-0": {"CPU": 1.0}})
    'learner 2 CPUs, reward-0 1 CPUs'
    """
    return ", ".join(f"{role} " + " ".join(f"{n:g} {what}s" for what, n in b.items()) for role, b in bundles.items())
