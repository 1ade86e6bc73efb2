"""Making checkpoints while a run goes on: its state is taken at one moment, and written beside the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from tether.errors import EngineLostError
from tether.pipeline.checkpoint import CheckpointOptions, Checkpoints
from tether.pipeline.learner import Learner
from tether.pipeline.snapshot import Snapshot, write_snapshot
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.writing import Writing
from tether.ports import RolloutEngine
from tether.records import Completion


@dataclass(slots=True, kw_only=True)
class Saver:
    """Has one checkpoint written at a time.

    What went wrong with one is told at the next look at it: no later than at the next checkpoint or at the end.
    """

    checkpoints: Checkpoints
    options: CheckpointOptions
    learner: Learner
    watch: Stopwatch
    sync: Callable[[], object]
    """Brings the journal to the disk."""
    _writing: Writing | None = None

    async def begin(self, step: int, snapshot: Snapshot, offsets: Mapping[str, int]) -> None:
        """Copy the weights that belong to a snapshot and to a journal of these lengths; leave the writing to others."""
        assert self._writing is None, "one at a time: end() comes first"
        into = partial(
            self.checkpoints.put,
            step=step,
            run=partial(write_snapshot, snapshot),
            offsets=offsets,
            keep=self.options.keep,
        )
        self._writing = await self.learner.save(into, self.sync)

    async def look(self) -> None:
        """Raise what went wrong with a checkpoint that is no longer being written."""
        if self._writing is not None and self._writing.is_done:
            await self.end()

    async def end(self) -> None:
        """Wait for the checkpoint that is being written, if any. Raises what went wrong with it."""
        if self._writing is None:
            return
        try:
            seconds = await self._writing.wait()
        except Exception:
            self._writing = None  # told
            raise
        self._writing = None
        self.watch.add("checkpoint_write", seconds)

    async def close(self) -> Exception | None:
        """The run is over, come what may: wait for a while; what went wrong with a checkpoint and was not told."""
        writing, self._writing = self._writing, None
        return None if writing is None else await writing.close()


async def partials_of(engines: Mapping[str, RolloutEngine]) -> dict[str, Completion]:
    """What engines have sampled so far of everything under way, by rollout id; without those that are being lost."""
    partials: dict[str, Completion] = {}
    for engine in engines.values():
        try:
            partials |= await engine.progress()
        except EngineLostError:  # what it had sampled died with it
            continue
    return partials
