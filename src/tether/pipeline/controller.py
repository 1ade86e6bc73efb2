"""The life of a run: publish version 0, evaluate, let the four loops work, evaluate, save; and tell the journal.

Whatever happens, every rollout gets its one fate before the run directory is closed.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tether.errors import RunDirectoryError, TetherError
from tether.evals.history import History
from tether.evals.options import EvalOptions
from tether.journal.schema import INTERRUPTED
from tether.journal.spans import TRAINER
from tether.journal.writer import RunWriter
from tether.pipeline.alarms import Alarms
from tether.pipeline.books import check_balance
from tether.pipeline.checkpoint import CheckpointOptions, Checkpoints
from tether.pipeline.interrupts import StopRequest, undisturbed
from tether.pipeline.loops import Loops, LoopsState
from tether.pipeline.packing import Row, Step
from tether.pipeline.reporting import Standing, sample_of, step_metrics
from tether.pipeline.saving import Saver, partials_of
from tether.pipeline.snapshot import Snapshot, going_on
from tether.pipeline.trainer import StepReport
from tether.ports import RolloutEngine
from tether.records import Event, Metric, Metrics

Observer = Callable[[Event], None]

MOST_SKIPPED = 10
"""Consecutive steps without a trainable token after which a run stops."""


@dataclass(slots=True, kw_only=True)
class Controller:
    """Runs the loops and keeps the journal."""

    loops: Loops
    writer: RunWriter
    eval_options: EvalOptions
    checkpoints: Checkpoints
    checkpoint_options: CheckpointOptions
    stop: StopRequest
    """Whether somebody asked the run to stop after the step under way."""
    samples: int
    """Rollouts stored each time."""
    samples_every: int
    """Steps between stored samples."""
    doubts: tuple[str, ...] = ()
    """What the recipe does that is known to be doubtful: told at the start."""
    alarms: Alarms = field(default_factory=Alarms)
    """What a person should hear of while it goes on."""
    observers: tuple[Observer, ...] = ()
    """Told of every event after it is written: the console."""
    _evaluations: History = field(default_factory=History)
    _skipped: int = 0
    _step: int = 0
    _restored: tuple[LoopsState, Path] | None = None
    _saver: Saver = field(init=False)
    _blind: Mapping[str, RolloutEngine] = field(default_factory=dict)
    """Engines that cannot tell their flight."""

    def __post_init__(self) -> None:
        self._saver = Saver(
            checkpoints=self.checkpoints,
            options=self.checkpoint_options,
            learner=self.loops.learner,
            watch=self.loops.watch,
            sync=self.writer.sync,
        )

    async def run(self) -> None:
        """From version 0, or from a restored checkpoint, to the saved model. Raises what stopped it, after the books
        are closed."""
        try:
            await self._run()
        except BaseException as error:
            cause = first_cause(error)
            with undisturbed():
                await self._close_stopped(cause)
            if isinstance(error, BaseExceptionGroup):
                raise cause from None
            raise

    def warn(self, note: str) -> None:
        """Tell of something that a person should hear of."""
        self._tell(self._event("warn", {}, note=note))

    def restore(self, snapshot: Snapshot, state: Path) -> None:
        """Go on from what a checkpoint holds, instead of beginning."""
        self._step = snapshot.loops.done
        self._evaluations = snapshot.evaluations
        self.alarms, self._skipped = snapshot.alarms, snapshot.skipped
        self._restored = going_on(snapshot, self.checkpoint_options.partials), state

    async def _run(self) -> None:
        engines = self.loops.rolling.pool.engines
        self._blind = {name: engine for name, engine in engines.items() if engine.in_flight() is None}
        if self._restored is not None:
            loops, state = self._restored
            await self.loops.publisher.load(await self.loops.learner.restore(state))
            self.loops.publisher.take_measured()  # checked again, but told when it was published
            self.loops.restore(loops)  # now that the engines hold their weights they take up what they were at
            if self._step == self.loops.steps:  # it died between its last checkpoint and its end; no step comes again
                await self.loops.learner.save_model(self.checkpoints.model)
        else:
            self._tell(self._event("start", {}))
            for remark in filter(None, (self.loops.learner.remark, *self.doubts)):
                self.warn(remark)
            await self.loops.watch.timing("publish", self.loops.publisher.begin())
            self._tell_checked()
            await self._evaluate(0)
            self.stop.check(0, saved=False)
        async with asyncio.TaskGroup() as tasks:
            others = [
                tasks.create_task(self.loops.feed(), name="feed"),
                tasks.create_task(self.loops.roll(), name="roll"),
                tasks.create_task(self.loops.pack(), name="pack"),
            ]
            await self.loops.train(self.after_step, self.between_steps)
            for task in others:
                task.cancel()
        await self._saver.end()
        self.loops.ledger.close_rest()
        check_balance(self.loops.ledger, self.loops.num_admitted)
        for message in self.alarms.look_back(self.loops.ledger.balance()):
            self.warn(message)
        self._tell(self._event("finish", {**self._evaluations.metrics(), **self._balance()}))
        self.writer.sync()

    async def _close_stopped(self, cause: BaseException) -> None:
        """Close the books of a run that did not finish; what stopped it is told, not what fails here."""
        unsaved = await self._saver.close()
        with suppress(RunDirectoryError):
            self.loops.ledger.close_rest()
        with suppress(RunDirectoryError):
            if unsaved is not None:
                self.warn(note_of(unsaved))
            self._tell(self._event("fail", self._balance(), note=note_of(cause)))
            self.writer.sync()

    async def after_step(self, number: int, step: Step, report: StepReport, standing: Standing) -> None:
        """Journal a step; evaluate and save where they are due."""
        self._step = number
        metrics = step_metrics(step, report, self.loops.watch, self._now(), standing)
        self._tell(self._event("step" if report.updated else "skip", metrics))
        self._skipped = 0 if report.updated else self._skipped + 1
        if self._skipped >= MOST_SKIPPED:
            raise TetherError(
                f"{MOST_SKIPPED} steps in a row held no trainable token (the last at step {number}); "
                "look at the ledger for what filtered them"
            )
        if self.samples and (number == 1 or number % self.samples_every == 0):
            decode = self.loops.rolling.reader.decode
            self.writer.rollouts([sample_of(row, number, report, decode) for row in _spread(step, self.samples)])
        for message in self.alarms.look(metrics):
            self.warn(message)
        if number == self.loops.steps:
            await self._saver.end()
            await self.loops.learner.save_model(self.checkpoints.model)  # before the evaluation, which may be stopped
        await self._evaluate(number)

    async def between_steps(self, number: int) -> None:
        """Tell what a publication's checks measured; begin a checkpoint where one is due, and make one before the run
        stops because somebody asked."""
        self._tell_checked()
        await self._saver.look()
        stops = self.stop.is_asked and number < self.loops.steps
        if self.checkpoint_options.due(number) or stops:
            with self.loops.rolling.timeline.spanning(TRAINER, "checkpoint"):
                await self.loops.watch.timing("checkpoint", self._save(number))
        if stops:
            await self._saver.end()
            self.stop.check(number, saved=True)

    async def _save(self, number: int) -> None:
        """Begin a checkpoint: everything in it is of this moment."""
        await self._saver.end()
        partials = await partials_of(self._blind)
        snapshot = Snapshot(
            now_s=self.loops.rolling.clock.due("train_step", 0.0),
            loops=self.loops.state(),
            partials=partials,
            open_lines=self.loops.ledger.open_lines,
            evaluations=self._evaluations,
            alarms=copy.deepcopy(self.alarms),
            skipped=self._skipped,
        )
        await self._saver.begin(number, snapshot, self.writer.offsets())

    def _tell_checked(self) -> None:
        if (published := self.loops.publisher.take_published()) is not None:
            size = Metric(float(published.num_bytes), "sum")
            self._tell(self._event("publish", {"publication/bytes": size}))
            is_unchanged = self.loops.publisher.is_unchanged
            for message in self.alarms.published(published.version, is_unchanged=is_unchanged):
                self.warn(message)
        if measured := self.loops.publisher.take_measured():
            self._tell(self._event("check", measured))

    async def _evaluate(self, number: int) -> None:
        if not self.eval_options.due(number, self.loops.steps):
            return
        with self.loops.rolling.timeline.spanning(TRAINER, "eval"):
            evaluation = await self.loops.watch.timing("eval", self.loops.learner.evaluate())
        self._evaluations = self._evaluations.with_next(number, evaluation)
        self.writer.evaluated(evaluation.lines(number))
        self._tell(self._event("eval", evaluation.metrics()))
        if evaluation.num_failed:
            self.warn(
                f"{evaluation.num_failed} samples of the evaluation could not be judged and count nowhere; the first: "
                f"{evaluation.failure}"
            )

    def _balance(self) -> Metrics:
        counts = {fate: float(count) for fate, count in self.loops.ledger.balance().items()}
        if not counts:
            return {}
        admitted = Metric(float(self.loops.num_admitted), "last")
        return {"ledger/balance": Metric(counts, "sum"), "ledger/admitted": admitted}

    def _now(self) -> float:
        return self.loops.rolling.clock.now()

    def _event(self, kind: str, metrics: Metrics, note: str = "") -> Event:
        return Event(event=kind, step=self._step, version=self.loops.learner.updates, metrics=metrics, note=note)

    def _tell(self, event: Event) -> None:
        self.writer.event(event)
        for observer in self.observers:
            observer(event)


def first_cause(error: BaseException) -> BaseException:
    """The first exception inside nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def note_of(cause: BaseException) -> str:
    """What the journal says about the end of a run that did not finish.

    >>> note_of(TetherError("no room")), note_of(KeyError("x")), note_of(KeyboardInterrupt())
    ('no room', "KeyError: 'x'", 'interrupted')
    """
    if isinstance(cause, TetherError):
        return str(cause)
    if isinstance(cause, Exception):
        return f"{type(cause).__name__}: {cause}"
    reason = str(cause) if isinstance(cause, asyncio.CancelledError) else ""  # a stall says who waits
    return reason or INTERRUPTED


def _spread(step: Step, count: int) -> list[Row]:
    rows = sorted(step.rows, key=lambda row: (row.group, row.rollout.id))
    stride = max(1, len(rows) // count)
    return rows[::stride][:count]
