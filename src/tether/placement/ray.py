"""Learner, engines and rewards in processes of their own, on this machine or on a Ray cluster, under real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from tether.errors import ConfigError
from tether.journal.writer import process_facts
from tether.pipeline.interrupts import StopRequest
from tether.pipeline.rollouts import score_here
from tether.pipeline.stopwatch import Stopwatch
from tether.placement.deadlines import Deadlines
from tether.placement.parts import MOST_ENGINES, Makers, Notices, Parts
from tether.placement.ray_engine import RayEngine
from tether.placement.ray_evaluator import RayEvaluator
from tether.placement.ray_host import EnginePart, EvaluatorPart, LearnerPart
from tether.placement.ray_learner import RayLearner
from tether.placement.ray_process import Process, Terms
from tether.placement.ray_rewards import RewardPart, RewardPool
from tether.placement.ray_room import Bundle, Room, Spread, room, shares
from tether.placement.ray_session import Session, check_installed, check_shared_memory, session
from tether.placement.real_time import RealClock, RealLoop
from tether.placement.restarts import Restarts
from tether.placement.termination import Termination, tell_exception, wind_up
from tether.ports import WeightStore
from tether.weights.directory import DirectoryStore
from tether.weights.ray import RayStore

T = TypeVar("T")

LEAST_STORE = 80 * 2**20
"""Bytes that Ray needs at least for its object store."""
MOST_THREADS = 1024
MOST_WORKERS = 4096
LEARNER, EVALUATOR = "learner", "evaluator"
VERSIONS_KEPT = 2
"""The one that the engine holds, and the one before, with which it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ray:
    """The ``[placement]`` table of kind ``ray``: the controller here, learner, engines and rewards in processes.

    What bounds what, so that a slow part fills no memory: slots bound the groups under way (``docs/staleness.md``), an
    engine is asked for at most ``engine.max_rows`` completions, the others wait in the controller as requests; a reward
    worker has eight rollouts in hand, the others wait in the controller, and no more than the slots allow; a letter
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
    weights: Literal["object-store", "directory"] = "object-store"
    """How versions travel: through Ray's shared memory and network, or as files in ``weights_folder``."""
    weights_folder: str = ""
    """An absolute path at which all nodes see the same folder, for this run alone; for ``weights = "directory"``."""
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
        if (self.weights == "directory") != bool(self.weights_folder):
            raise ConfigError(
                "placement.weights_folder is for placement.weights = 'directory', which needs one; got weights "
                f"{self.weights!r} and weights_folder {self.weights_folder!r}: set both, or neither"
            )
        if self.weights_folder and not Path(self.weights_folder).is_absolute():
            raise ConfigError(
                "placement.weights_folder must be an absolute path, for every process reads it from where it runs; got "
                f"{self.weights_folder!r}"
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
        held = makers.evaluator
        roles = self.bundles(makers.device, 0.0 if makers.device == "cpu" else 1.0, has_evaluator=held is not None)
        num_cpus = int(sum(bundle["CPU"] for bundle in roles.values()))
        with (
            session(self.address, num_cpus=num_cpus, object_store_bytes=self.object_store_bytes) as ray_session,
            room(
                self.bundles(makers.device, ray_session.num_gpus, has_evaluator=held is not None),
                self.spread,
                self.deadlines.start_s,
            ) as found,
            ExitStack() as processes,
        ):
            yield self._opened(makers, partial(self._start, ray_session, found), processes)

    def _opened(
        self, makers: Makers, start: Callable[[Callable[[], Any], str], Process], processes: ExitStack
    ) -> Parts:
        """Start everything at once, then wait for each."""
        device = "cuda" if makers.device.startswith("cuda") else makers.device
        watch, notices = Stopwatch(), Notices()
        terms = (self.deadlines, Restarts(self.max_restarts, notices), notices)
        store = self._store(makers.dtype, VERSIONS_KEPT, "engines")
        full, evaluator = None, None
        if (held := makers.evaluator) is not None:
            full = self._store(held.dtype, held.versions, "evaluator")
            evaluator = RayEvaluator(partial(start, partial(EvaluatorPart, held.make, full, device), EVALUATOR), *terms)
        learner = RayLearner(
            start(partial(LearnerPart, makers, store, full, device), LEARNER), self.deadlines, watch, notices
        )
        engine = partial(start, partial(EnginePart, makers, store, device))
        engines = {name: RayEngine(partial(engine, name), *terms) for name in self._engine_names}
        rewards = RewardPool(partial(start, partial(RewardPart, makers.rewards)), self._worker_names, *terms)
        parts: list[RayLearner | RayEngine | RewardPool | RayEvaluator] = [learner, *engines.values(), rewards]
        if evaluator is not None:
            parts.append(evaluator)
        for part in parts:
            processes.callback(part.end)
        for part in parts:
            part.started()
        notices.process(process_facts("controller" if self.reward_workers else "controller, rewards"))
        return Parts(
            learner=learner,
            engines=engines,
            score=rewards.score if self.reward_workers else score_here(makers.rewards()),
            evaluator=evaluator,
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

    def bundles(self, device: str, num_gpus: float, *, has_evaluator: bool = False) -> dict[str, Bundle]:
        """What each process needs, by role."""
        models = [*self._engine_names, *([EVALUATOR] if has_evaluator else [])]
        on_gpu: list[dict[str, float]] = [{}, {}]
        if device.startswith("cuda"):
            if num_gpus == 0:
                raise ConfigError(f"run.device {device!r} needs a GPU that Ray can hand out; there is none: use cpu")
            on_gpu = [{"GPU": share} for share in shares(1 + len(models), num_gpus)]
        cpus = {"CPU": float(self.threads)}
        bundles: dict[str, Bundle] = {LEARNER: cpus | on_gpu[0]}
        bundles.update(dict.fromkeys(models, cpus | on_gpu[1]))
        bundles.update((name, {"CPU": 1.0}) for name in self._worker_names)
        return bundles

    @property
    def _engine_names(self) -> tuple[str, ...]:
        return tuple(f"engine-{n}" for n in range(self.engines))

    @property
    def _worker_names(self) -> tuple[str, ...]:
        return tuple(f"reward-{n}" for n in range(self.reward_workers))

    def _store(self, dtype: str, keep: int, what: str) -> WeightStore:
        if self.weights == "directory":
            return DirectoryStore(Path(self.weights_folder) / what, dtype, keep=keep)
        return RayStore(dtype, limit_bytes=self.object_store_bytes, keep=keep)

    def _start(self, ray_session: Session, found: Room, make: Callable[[], Any], role: str) -> Process:
        threads = 1 if role in self._worker_names else self.threads
        terms = Terms(resources=found.of(role, threads), heartbeat_s=self.heartbeat_s, logs=ray_session.logs)
        return Process(role, make, terms, on_start=ray_session.keep)
