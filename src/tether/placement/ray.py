"""Engine and learner in processes of their own, on this machine or on a Ray cluster, under real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tether.errors import ConfigError
from tether.journal.writer import process_facts
from tether.pipeline.interrupts import StopRequest
from tether.pipeline.stopwatch import Stopwatch
from tether.placement.deadlines import Deadlines
from tether.placement.parts import Makers, Notices, Parts
from tether.placement.ray_engine import RayEngine
from tether.placement.ray_host import EnginePart, LearnerPart
from tether.placement.ray_learner import RayLearner
from tether.placement.ray_process import Process, Terms
from tether.placement.ray_session import Session, check_installed, check_shared_memory, session
from tether.placement.real_time import RealClock, RealLoop
from tether.placement.termination import Termination, tell_exception
from tether.weights.ray import RayStore

T = TypeVar("T")

LEAST_STORE = 80 * 2**20
"""Bytes that Ray needs at least for its object store."""
MOST_THREADS = 1024
VERSIONS_KEPT = 2
"""The one that the engine holds, and the one before, with which it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """The ``[placement]`` table of kind ``ray``: controller here, learner and engine in a process each.

    >>> Ray(threads=0)
    Traceback (most recent call last):
    tether.errors.ConfigError: placement.threads must lie in 1 .. 1024; got 0
    """

    address: str = ""
    """Of a cluster to use; empty: a Ray of the run's own, on this machine alone. On a cluster every process must see
    the run directory at the same path."""
    threads: int = 1
    """Of torch, in each process."""
    object_store_bytes: int = 2**30
    """Bound of the shared memory through which weights travel; three versions of them must fit."""
    heartbeat_s: float = 60.0
    """A process that gives no sign of life for so long is ended; it is asked four times as often."""
    max_restarts: int = 3
    """How often an engine that died is started anew, in the whole run."""
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"placement.threads must lie in 1 .. {MOST_THREADS}; got {self.threads}")
        if not LEAST_STORE <= self.object_store_bytes <= 2**50:
            raise ConfigError(
                f"placement.object_store_bytes must lie in {LEAST_STORE} .. 2^50; got {self.object_store_bytes}"
            )
        if not 1.0 <= self.heartbeat_s <= 1e9:
            raise ConfigError(f"placement.heartbeat_s must lie in 1 .. 1e9 seconds; got {self.heartbeat_s}")
        if not 0 <= self.max_restarts <= 10**6:
            raise ConfigError(f"placement.max_restarts must lie in 0 .. 10^6; got {self.max_restarts}")

    def check(self, device: str) -> None:
        """Refuse a machine without Ray, or without the shared memory asked for."""
        check_installed()
        if not self.address:
            check_shared_memory(self.object_store_bytes)
        if ":" in device:
            raise ConfigError(f"run.device must be auto, cpu or cuda under ray, which hands out GPUs; got {device!r}")

    @contextmanager
    def open(self, makers: Makers) -> Iterator[Parts]:
        """Start both processes and wait until each has its model."""
        watch, notices = Stopwatch(), Notices()
        with (
            session(self.address, num_cpus=2 * self.threads, object_store_bytes=self.object_store_bytes) as ray_session,
            ExitStack() as processes,
        ):
            start = partial(self._start, ray_session, makers)
            learner = RayLearner(start("learner", LearnerPart), self.deadlines, watch, notices)
            processes.callback(learner.end)
            engine = RayEngine(
                partial(start, "engine-0", EnginePart), self.deadlines, self.max_restarts, watch, notices
            )
            processes.callback(engine.end)
            learner.started()
            engine.started()
            notices.process(process_facts("controller"))
            yield Parts(
                learner=learner,
                engine=engine,
                clock=RealClock(),
                vocabulary=learner.vocabulary,
                device="cpu",
                watch=watch,
                notices=notices,
            )

    def run(self, main: Coroutine[Any, Any, T], stop: StopRequest | None = None, *, start_s: float = 0.0) -> T:
        """Run a coroutine to its end under real time that begins at ``start_s``."""
        with (
            Termination(stop or StopRequest()),
            asyncio.Runner(loop_factory=lambda: RealLoop(start_s)) as runner,
        ):
            runner.get_loop().set_exception_handler(tell_exception)
            return runner.run(main)

    def _start(
        self, ray_session: Session, makers: Makers, role: str, part: Callable[[Makers, RayStore, str], Any]
    ) -> Process:
        store = RayStore(makers.dtype, limit_bytes=self.object_store_bytes, keep=VERSIONS_KEPT)
        terms = Terms(
            resources=self.resources(makers.device, ray_session.num_gpus),
            heartbeat_s=self.heartbeat_s,
            logs=ray_session.logs,
        )
        device = "cuda" if makers.device.startswith("cuda") else makers.device
        return Process(role, partial(part, makers, store, device), terms, on_start=ray_session.keep)

    def resources(self, device: str, num_gpus: float) -> dict[str, Any]:
        """What Ray sets aside for a process, and its environment, which torch reads when it is imported."""
        threads = str(self.threads)
        variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}
        resources: dict[str, Any] = {"num_cpus": self.threads, "runtime_env": {"env_vars": variables}}
        if device.startswith("cuda"):
            if num_gpus == 0:
                raise ConfigError(f"run.device {device!r} needs a GPU that Ray can hand out; there is none: use cpu")
            resources["num_gpus"] = 1.0 if num_gpus >= 2 else 0.5  # one GPU is shared
        return resources
