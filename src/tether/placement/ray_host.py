"""What runs inside a process of its own: one part of the run, and beside it threads that always answer.

Ray gives every concurrency group of an asynchronous actor a thread and an event loop. The part has the loop of the
default group for itself: its calls run there one after the other, except where the part itself gives way; an engine
does so between blocks of tokens, and only there may ``load`` come in, so that no token sees half a version. Calls come
and go in the group ``calls``, because Ray takes several turns of a loop for each, and one turn of the part's may be a
block of tokens. The group ``control`` has the ``ping``, which is answered while the part is busy.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from tether.journal.writer import process_facts
from tether.pipeline.acquisition import Acquisition
from tether.pipeline.capture import Captured
from tether.pipeline.old_policy import Evaluator
from tether.pipeline.writing import Into
from tether.placement.desk import Desk
from tether.placement.parts import Facts, Makers
from tether.placement.real_time import RealClock
from tether.ports import EngineCapabilities, GenerationRequest, InFlight, Publication, WeightStore
from tether.records import Completion, Floats, Rollout

T = TypeVar("T")
GROUPS = {"control": 2, "calls": 1000}
"""Concurrency groups, and how many calls each has under way at most."""
TURNS = 3
"""Of the event loop, in which what is done is collected and sent before the next piece blocks it."""


class Host:
    """The actor: a role, and a part that is made here.

    Args:
        role: what the journal calls the process.
        make: makes the part.
    """

    def __init__(self, role: str, make: Callable[[], Any]) -> None:
        self._facts, self._make = process_facts(role), make
        self._part: Any = None
        self._loop: asyncio.AbstractEventLoop

    async def open(self) -> Any:
        """Make the part; what the controller must know of it."""
        self._loop = asyncio.get_running_loop()
        self._part = self._make()
        return self._part.about()

    async def call(self, name: str, *args: Any, **options: Any) -> tuple[Any, float]:
        """Await a method of the part, on its loop; its result, and the seconds it took there."""
        done: Future[tuple[Any, float]] = Future()
        self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._do(done, name, args, options)))
        return await asyncio.wrap_future(done)

    async def _do(self, done: Future[tuple[Any, float]], name: str, args: Any, options: Any) -> None:
        began = time.perf_counter()
        try:
            value = await getattr(self._part, name)(*args, **options)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result((value, time.perf_counter() - began))

    async def facts(self) -> Facts:
        """Role, pid, host: what the journal says of this process."""
        return self._facts

    async def ping(self) -> int:
        """A sign of life."""
        return os.getpid()


class EnginePart:
    """A rollout engine in a process of its own. What is asked of it comes over a desk; control calls come in wherever
    the engine gives way, and are told the seconds worked with what they ask for."""

    def __init__(self, makers: Makers, store: WeightStore, device: str) -> None:
        self._engine = makers.engine(store, RealClock(), device)
        desk = Desk(self._engine.generate, lambda: self._engine.busy_s)
        self.submit, self.cancel, self.collect = desk.submit, desk.cancel, desk.collect

    def about(self) -> EngineCapabilities:
        """What it can report."""
        return self._engine.capabilities

    async def answer(self, requests: Sequence[GenerationRequest]) -> tuple[list[Completion], float]:
        """Sample apart from what is under way."""
        return await self._engine.answer(requests), self._engine.busy_s

    async def load(self, publication: Publication, in_flight: InFlight) -> tuple[tuple[str, int], float]:
        """Fingerprint of what was received, and the version that the engine has now."""
        received = await self._engine.load(publication, in_flight)
        return (received, self._engine.version), self._engine.busy_s

    async def progress(self) -> tuple[Mapping[str, Completion], float]:
        """What was sampled so far of everything under way."""
        return await self._engine.progress(), self._engine.busy_s


class EvaluatorPart:
    """An evaluator of old log-probs in a process of its own; rollouts come over a desk, and are scored one by one."""

    def __init__(self, make: Callable[[WeightStore, str], Evaluator], store: WeightStore, device: str) -> None:
        self._evaluator, self._is_scoring = make(store, device), asyncio.Lock()
        self.load, self.forget = self._evaluator.load, self._evaluator.forget
        desk = Desk(self._score, lambda: 0.0)
        self.submit, self.cancel, self.collect = desk.submit, desk.cancel, desk.collect

    def about(self) -> None:
        """Nothing that the controller must know."""

    async def _score(self, rollout: Rollout) -> Floats:
        async with self._is_scoring:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            return await self._evaluator.score(rollout)


class LearnerPart:
    """A learner in a process of its own. Steps come packed in ordinary memory and go to the device here."""

    def __init__(self, makers: Makers, store: WeightStore, full_store: WeightStore | None, device: str) -> None:
        self._learner, self._device = makers.learner(store, device, full_store), device
        self._captured: Captured | None = None

    def about(self) -> Mapping[str, Any]:
        """What the controller must know to make its steps."""
        learner = self._learner
        return {
            "vocabulary": learner.loaded.vocabulary,
            "sharing": learner.sharing,
            "remark": learner.remark,
            "acquires": isinstance(learner.old, Acquisition),
        }

    async def step(self, step: Any) -> Any:
        """The report, with arrays for tensors, which travel much faster, and the updates made."""
        step = replace(step, micro_batches=tuple(moved(m, self._device) for m in step.micro_batches))
        report = await self._learner.step(step)
        logp, staleness = ({key: t.cpu().numpy() for key, t in m.items()} for m in (report.logp, report.staleness))
        bare = replace(report, logp={}, staleness={})
        return bare, logp, staleness, self._learner.updates

    async def capture(self) -> None:
        """Copy everything that a checkpoint needs."""
        self._captured = self._learner.captured()

    async def write(self, into: Into) -> None:
        """Write what was copied last, beside the steps."""
        captured, self._captured = self._captured, None
        assert captured is not None, "capture() comes first"
        await asyncio.to_thread(into, captured.write)

    async def restore(self, folder: Path) -> tuple[Publication, int]:
        """What was published again, and the updates made."""
        return await self._learner.restore(folder), self._learner.updates

    def __getattr__(self, name: str) -> Any:
        """Everything else is the learner's own."""
        return getattr(self._learner, name)


def moved(record: T, device: str) -> T:
    """A record with its tensors, and those of the records in it, on a device."""
    from tether.models.policy import ModelInputs

    changes = {}
    for f in fields(record):  # type: ignore[arg-type]
        value = getattr(record, f.name)
        if isinstance(value, ModelInputs):
            changes[f.name] = moved(value, device)
        elif hasattr(value, "to"):
            changes[f.name] = value.to(device)
    return replace(record, **changes)  # type: ignore[type-var]
