"""A run on a simulated cluster, three raylets on this machine, one of which dies with an engine. For a process of its
own, for Ray knows one cluster a process: ``python -m tests.placement.cluster_run FOLDER SETTING...``."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from tether.config.build import train
from tether.records import Event

from .test_ray_run import pid_of, processes, recipe_of


class NodeKiller:
    """After a step, kills a node that has an engine, and neither the learner nor the controller's raylet."""

    def __init__(self, cluster: Any, folder: Path, step: int) -> None:
        self._cluster, self._folder, self._step = cluster, folder, step

    def __call__(self, event: Event) -> None:
        if event.event != "step" or event.step != self._step:
            return
        import ray

        spared = {ray._private.worker.global_worker.node._raylet_socket_name, self._home_of("learner")}
        name = next(name for name in ("engine-0", "engine-1") if self._home_of(name) not in spared)
        [doomed] = [node for node in self._nodes() if node._raylet_socket_name == self._home_of(name)]
        print(f"killed the node of {name}", flush=True)
        self._cluster.remove_node(doomed, allow_graceful=False)

    def _nodes(self) -> list[Any]:
        return [self._cluster.head_node, *self._cluster.worker_nodes]

    def _home_of(self, role: str) -> str:
        """The socket of the raylet whose child a process is."""
        import psutil

        parents = {process.pid for process in psutil.Process(pid_of(self._folder, role)).parents()}
        for node in self._nodes():
            if node.all_processes["raylet"][0].process.pid in parents:
                return str(node._raylet_socket_name)
        raise AssertionError(f"{role} is on no node")


def main() -> None:
    folder, *settings = sys.argv[1:]
    os.environ |= {"RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    place = tempfile.mkdtemp(prefix="tether-", dir="/tmp")  # short enough for sockets
    head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": place}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        where = (f"placement.address={cluster.address}", "placement.spread=spread", "placement.engines=2")
        observer = NodeKiller(cluster, Path(folder), step=2)
        train(recipe_of(*where, *settings), Path(folder), observers=(observer,))
        print("roles", [facts["role"] for facts in processes(Path(folder))], flush=True)
    finally:
        cluster.shutdown()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
