"""The learner as the controller sees it: in a process of its own, with everything that touches the weights."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tether.errors import ProcessLostError
from tether.evals.evaluation import Evaluation
from tether.models.loading import Vocabulary
from tether.models.sharing import PromptSharing
from tether.pipeline.packing import Step
from tether.pipeline.scoring import Scores
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import StepReport
from tether.pipeline.writing import PATIENCE_S, Into, Writing, given_up
from tether.placement.deadlines import Deadlines
from tether.placement.parts import Notices
from tether.placement.ray_process import Process, ProcessDiedError
from tether.ports import Publication
from tether.records import Rollout


class RayLearner:
    """A ``Learner`` in another process. It cannot be started anew: the weights die with it, and the run stops."""

    def __init__(self, process: Process, deadlines: Deadlines, watch: Stopwatch, notices: Notices) -> None:
        self._process, self._deadlines, self._watch, self._notices = process, deadlines, watch, notices
        self._about: dict[str, Any] = {}
        self._updates = 0

    def started(self) -> None:
        """Wait for the process; for before the loop runs."""
        try:
            self._about = self._process.started(self._deadlines.start_s)
        except ProcessDiedError as died:
            raise ProcessLostError(f"{died}; nothing has begun yet: start again") from died
        self._notices.process(self._process.facts)

    def end(self) -> None:
        """End the process."""
        self._process.end()

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the model that is trained."""
        vocabulary: Vocabulary = self._about["vocabulary"]
        return vocabulary

    @property
    def updates(self) -> int:
        """Optimizer updates made."""
        return self._updates

    @property
    def sharing(self) -> PromptSharing | None:
        """How the steps made for it may share prompts."""
        sharing: PromptSharing | None = self._about["sharing"]
        return sharing

    @property
    def remark(self) -> str:
        """What a person should hear of before it starts, if anything."""
        return str(self._about["remark"])

    async def step(self, step: Step) -> StepReport:
        """Train on a step."""
        report: StepReport
        report, *arrays, self._updates = await self._call(
            "step", replace(step, groups=()), deadline="step", kind="train"
        )
        # shared memory is for reading, and tensors are for writing: hence the copies
        logp, staleness = ({key: torch.from_numpy(a.copy()) for key, a in by_rollout.items()} for by_rollout in arrays)
        return replace(report, logp=logp, staleness=staleness)

    async def publish(self, live: int | None = None) -> Publication:
        """Put the weights of this moment into the store; no token that is still to be used is older than ``live``."""
        publication: Publication = await self._call("publish", live, deadline="publish", kind="publish")
        return publication

    async def publish_trial(self) -> Publication | None:
        """Put an adapter that makes a difference into the store, if there are adapters."""
        publication: Publication | None = await self._call("publish_trial", deadline="publish", kind="publish")
        return publication

    async def old_publications(self) -> tuple[Publication, ...]:
        """What an evaluator of old log-probs must hold."""
        publications: tuple[Publication, ...] = await self._call("old_publications", deadline="publish", kind="publish")
        return publications

    async def acquire(self, rollouts: Sequence[Rollout], alive: Collection[str]) -> None:
        """Score what must be scored before the next update; where nothing must, nothing is sent."""
        if self._about["acquires"]:
            await self._call("acquire", list(rollouts), list(alive), deadline="step", kind="train")

    async def score(
        self, rollouts: Sequence[Rollout], publication: Publication, temperature: float, *, formats: bool = True
    ) -> Scores:
        """Log-probabilities of sampled tokens under what was published and what is trained."""
        scores: Scores = await self._call(
            "score", list(rollouts), publication, temperature, deadline="publish", kind="publish", formats=formats
        )
        return scores

    async def check_masks(self, rollouts: Sequence[Rollout]) -> None:
        """Raise ``SelfCheckError`` if tokens that are not trained on change loss or gradient."""
        await self._call("check_masks", list(rollouts), deadline="publish", kind="publish")

    async def evaluate(self) -> Evaluation:
        """Answer the held-out prompts with the weights of this moment."""
        evaluation: Evaluation = await self._call("evaluate", deadline="evaluate", kind="eval")
        return evaluation

    async def save_model(self, folder: Path) -> None:
        """Write the weights as a Hugging Face folder; the other process must see the same folder."""
        await self._call("save_model", folder.absolute(), deadline="checkpoint", kind="checkpoint")

    async def save(self, into: Into, first: Callable[[], object]) -> Writing:
        """Have everything copied in the other process, and written there beside its steps."""
        await self._call("capture", deadline="checkpoint", kind="checkpoint")
        return TaskWriting(self._write(into, first))

    async def _write(self, into: Into, first: Callable[[], object]) -> float:
        began = time.perf_counter()
        await asyncio.to_thread(first)
        await self._call("write", into, deadline="checkpoint", kind="")
        return time.perf_counter() - began

    async def restore(self, folder: Path) -> Publication:
        """Go on from what ``save`` wrote; publishes again what the engine held then."""
        publication: Publication
        publication, self._updates = await self._call(
            "restore", folder.absolute(), deadline="checkpoint", kind="checkpoint"
        )
        return publication

    async def _call(self, name: str, *args: Any, deadline: str, kind: str, **options: Any) -> Any:
        key = f"{deadline}_s"
        try:
            value, seconds = await self._process.call(
                name, *args, deadline=key, within_s=getattr(self._deadlines, key), **options
            )
        except ProcessDiedError as died:
            raise ProcessLostError(
                f"{died}; the weights since the last checkpoint went with it: go on with tether train --resume"
            ) from died
        if kind:
            self._watch.add(kind, seconds)
        return value


class TaskWriting:
    """Work that another process does, as a task of this one."""

    def __init__(self, work: Coroutine[Any, Any, float]) -> None:
        self._task = asyncio.get_running_loop().create_task(work, name="tether-writes")

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._task.done()

    async def wait(self) -> float:
        """Wait for its end: the real seconds it took. Raises what went wrong."""
        await asyncio.wait({self._task})
        return self._task.result()

    async def close(self) -> Exception | None:
        """Wait for a while, then give it up; what went wrong."""
        await asyncio.wait({self._task}, timeout=PATIENCE_S)
        if not self._task.done():
            self._task.cancel()
            return given_up()
        if self._task.cancelled():
            return None
        error = self._task.exception()
        return error if isinstance(error, Exception) else None
