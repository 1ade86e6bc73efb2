"""Parts simple enough to live in a process of their own without a model, and a Ray to put them on."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tether.errors import RewardError
from tether.placement.ray_process import Process, Terms
from tether.placement.ray_room import environment


class Scripted:
    """Works by blocking its thread, as a model does; gives way where a test asks it to."""

    def about(self) -> str:
        return "scripted"

    async def work(self, seconds: float) -> int:
        time.sleep(seconds)
        return os.getpid()

    async def pausing(self, num_pauses: int) -> list[str]:
        seen = []
        for _ in range(num_pauses):
            time.sleep(0.05)
            seen.append(self.weights)
            await asyncio.sleep(0)
        return seen

    weights = "old"

    async def change(self, weights: str) -> None:
        self.weights = weights

    async def environment(self) -> dict[str, str | None]:
        return {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}

    async def fail(self) -> None:
        raise RewardError("the judge is away", rollout_id="g3/1")


def process(role: str = "part", make: Callable[[], Any] = Scripted, *, heartbeat_s: float = 60.0) -> Process:
    resources: dict[str, Any] = {"num_cpus": 0, "runtime_env": {"env_vars": environment(3)}}
    return Process(role, make, Terms(resources=resources, heartbeat_s=heartbeat_s, logs=None))


def is_alive(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process is still there after a while."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True
