"""Learner, engines and rewards in processes of their own, on this machine or on a Ray cluster, under real time."""

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
from tether.pipeline.rollouts import score_here
from tether.pipeline.stopwatch import Stopwatch
from tether.placement.deadlines import Deadlines
from tether.placement.parts import MOST_ENGINES, Makers, Notices, Parts
from tether.placement.ray_engine import RayEngine
from tether.placement.ray_host import EnginePart, LearnerPart
from tether.placement.ray_learner import RayLearner
from tether.placement.ray_process import Process, Terms
from tether.placement.ray_rewards import RewardPart, RewardPool
from tether.placement.ray_room import Bundle, Room, Spread, room, shares
from tether.placement.ray_session import Session, check_installed, check_shared_memory, session
from tether.placement.real_time import RealClock, RealLoop
from tether.placement.restarts import Restarts
from tether.placement.termination import Termination, tell_exception, wind_up
from tether.ports import WeightStore
from tether.weights.ray import RayStore

T = TypeVar("T")

LEAST_STORE = 80 * 2**20
"""Bytes that Ray needs at least for its object store."""
MOST_THREADS = 1024
MOST_WORKERS = 4096
VERSIONS_KEPT = 2
"""The one that the engine holds, and the one before, with which it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """The ``[placement]`` table of kind ``ray``: the controller here, learner, engines and rewards in processes.

    What bounds what, so that a slow part fills no memory: slots bound the groups under way (``docs/staleness.md``), an
    engine is asked for at most ``engine.max_rows`` completions, the others wait in the controller as requests; a reward
    worker has four rollouts in hand, the others wait in the controller, and no more than the slots allow; a letter
    between two processes holds at most what an engine has under way. Three versions of the weights lie in the object
    store.

    >>> Ray(threads=0)
    Traceback (most recent call last):
    tether.errors.ConfigError: placement.threads must lie in 1 .. 1024; got 0
    """

    address: str = ""
    """Of a cluster to use; empty: a Ray of the run's own, on this machine alone. The learner writes into the run
    directory: the nodes where it may run must see that at the same path."""
    engines: int = 1
    """How many sample, a process with a copy of the model each."""
    reward_workers: int = 0
    """Processes that judge; 0: the controller does."""
    spread: Spread = "pack"
    """``pack``: on as few nodes as possible; ``spread``: on as many."""
    threads: int = 1
    """Of torch, in each process that holds a model."""
    object_store_bytes: int = 2**30
    """Bound of the shared memory through which weights travel; three versions of them must fit."""
    heartbeat_s: float = 60.0
    """A process that gives no sign of life for so long is ended; it is asked four times as often."""
    max_restarts: int = 3
    """How often engines and reward workers that died are started anew, together, in the whole run."""
    deadlines: Deadlines = field(default_factory=Deadlines)

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_THREADS:
            raise ConfigError(f"placement.threads must lie in 1 .. {MOST_THREADS}; got {self.threads}")
        if not 1 <= self.engines <= MOST_ENGINES:
            raise ConfigError(f"placement.engines must lie in 1 .. {MOST_ENGINES}; got {self.engines}")
        if not 0 <= self.reward_workers <= MOST_WORKERS:
            raise ConfigError(f"placement.reward_workers must lie in 0 .. {MOST_WORKERS}; got {self.reward_workers}")
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
        """Start all processes and wait until each has its part."""
        watch, notices = Stopwatch(), Notices()
        restarts = Restarts(self.max_restarts, notices)
        with (
            session(self.address, num_cpus=self.num_cpus, object_store_bytes=self.object_store_bytes) as ray_session,
            room(self.bundles(makers.device, ray_session.num_gpus), self.spread, self.deadlines.start_s) as found,
            ExitStack() as processes,
        ):
            start = partial(self._start, ray_session, found, makers)
            learner = RayLearner(start("learner", LearnerPart), self.deadlines, watch, notices)
            processes.callback(learner.end)
            engines = {
                name: RayEngine(partial(start, name, EnginePart), self.deadlines, restarts, notices)
                for name in self._engine_names
            }
            rewards = RewardPool(
                partial(self._start_worker, ray_session, found, makers),
                self._worker_names,
                self.deadlines,
                restarts,
                notices,
            )
            processes.callback(rewards.end)
            for engine in engines.values():
                processes.callback(engine.end)
            learner.started()
            for engine in engines.values():
                engine.started()
            rewards.started()
            notices.process(process_facts("controller" if self.reward_workers else "controller, rewards"))
            yield Parts(
                learner=learner,
                engines=engines,
                score=rewards.score if self.reward_workers else score_here(makers.reward()),
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
            try:
                return runner.run(main)
            except KeyboardInterrupt:
                wind_up(runner.get_loop(), main)
                raise

    @property
    def num_cpus(self) -> int:
        """That Ray counts for all processes of a run."""
        return self.threads * (1 + self.engines) + self.reward_workers

    def bundles(self, device: str, num_gpus: float) -> dict[str, Bundle]:
        """What each process needs, by role."""
        on_gpu: list[dict[str, float]] = [{}, {}]
        if device.startswith("cuda"):
            if num_gpus == 0:
                raise ConfigError(f"run.device {device!r} needs a GPU that Ray can hand out; there is none: use cpu")
            on_gpu = [{"GPU": share} for share in shares(1 + self.engines, num_gpus)]
        cpus = {"CPU": float(self.threads)}
        bundles: dict[str, Bundle] = {"learner": cpus | on_gpu[0]}
        bundles.update(dict.fromkeys(self._engine_names, cpus | on_gpu[1]))
        bundles.update((name, {"CPU": 1.0}) for name in self._worker_names)
        return bundles

    @property
    def _engine_names(self) -> tuple[str, ...]:
        return tuple(f"engine-{n}" for n in range(self.engines))

    @property
    def _worker_names(self) -> tuple[str, ...]:
        return tuple(f"reward-{n}" for n in range(self.reward_workers))

    def _start(
        self,
        ray_session: Session,
        found: Room,
        makers: Makers,
        role: str,
        part: Callable[[Makers, WeightStore, str], Any],
    ) -> Process:
        store = RayStore(makers.dtype, limit_bytes=self.object_store_bytes, keep=VERSIONS_KEPT)
        device = "cuda" if makers.device.startswith("cuda") else makers.device
        make = partial(part, makers, store, device)
        return Process(role, make, self._terms(ray_session, found, role, self.threads), on_start=ray_session.keep)

    def _start_worker(self, ray_session: Session, found: Room, makers: Makers, role: str) -> Process:
        make = partial(RewardPart, makers.reward)
        return Process(role, make, self._terms(ray_session, found, role, 1), on_start=ray_session.keep)

    def _terms(self, ray_session: Session, found: Room, role: str, threads: int) -> Terms:
        return Terms(resources=found.of(role, threads), heartbeat_s=self.heartbeat_s, logs=ray_session.logs)
