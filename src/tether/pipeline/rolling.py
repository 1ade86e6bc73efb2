"""The life of a rollout: asked for, sampled, judged; then its group is whole, or it has failed.

Every rollout is a task of its own, so that a slow or broken one holds up nobody else. What is known of all that are
under way can be told at any moment, and gone on with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tether.errors import EngineLostError, NonFiniteError, RewardError, TetherError
from tether.journal.ledger import Ledger
from tether.journal.spans import REWARDS
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.faults import LEAST_SURVIVORS, Faults
from tether.pipeline.old_policy import Evaluator
from tether.pipeline.pool import Pool
from tether.pipeline.rollouts import Asked, Reader, Scorer
from tether.pipeline.selection import TOO_FEW, Selection
from tether.pipeline.timeline import Timeline
from tether.ports import Clock, GenerationRequest
from tether.records import Completion, Group, Rollout

NOT_YET = 2**62
"""In the place of a number that comes later."""


@dataclass(slots=True, kw_only=True)
class Member:
    """One rollout of a group, on its way."""

    request: GenerationRequest
    num_restarts: int = 0
    floor: int = NOT_YET
    """No token of it has an older version; unknown before an engine takes it."""
    engine: str = ""
    """Who samples it, or sampled it."""
    completion: Completion | None = None
    turn: int = NOT_YET
    """Its place among all that were sampled."""
    sampled_s: float = 0.0
    judged_s: float = 0.0
    """When its reward is due."""
    rollout: Rollout | None = None
    has_failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes of it."""
        return self.rollout is not None or self.has_failed


@dataclass(slots=True, kw_only=True)
class Underway:
    """A group of which something is still to come."""

    asked: Asked
    members: list[Member]

    def parts(self, progress: Mapping[str, Completion]) -> Iterator[Rollout]:
        """Its rollouts as far as they were sampled, without rewards."""
        for member in self.members:
            made = member.completion or progress.get(member.request.id) or member.request.so_far
            if made is not None and not member.has_failed:
                yield Rollout(
                    id=member.request.id,
                    prompt=self.asked.prompt,
                    completion=made,
                    text="",
                    reward=0.0,
                    started_s=self.asked.started_s,
                    finished_s=self.asked.started_s,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaks:
    """What happened so often in a row that a run may have to stop."""

    failed: int = 0
    """Rollouts."""
    flat: int = 0
    """Groups."""
    few: int = 0
    """Groups of which too few rollouts came to an end."""
    num_sampled: int = 0
    """Rollouts in all, which numbers their turns."""


@dataclass(slots=True, kw_only=True)
class Rolling:
    """Everything that is under way between asking for a group and the buffer."""

    pool: Pool
    reader: Reader
    score: Scorer
    buffer: GroupBuffer
    ledger: Ledger
    clock: Clock
    timeline: Timeline
    faults: Faults
    selection: Selection
    loads: Collection[tuple[float, int]]
    """When the engines took which version, as far back as a rollout may reach."""
    updates: Callable[[], int]
    """Optimizer updates made so far."""
    task: str
    """Its name, for messages."""
    told: Callable[[str], object] = lambda text: None
    """Hears of the first failure of each kind."""
    measured: Callable[[Group], object] = lambda group: None
    """Hears of every finished group, also of one that is filtered."""
    evaluator: Evaluator | None = None
    """Gives each rollout its old log-probs."""
    open: dict[int, Underway] = field(default_factory=dict)
    num_over: int = 0
    """Rollouts of which nothing more comes, counted since this process began."""
    streaks: Streaks = field(default_factory=Streaks)
    kinds_told: set[str] = field(default_factory=set)
    """Of failures, those of which ``told`` has heard."""

    def start(self, groups: Iterable[Underway], tasks: asyncio.TaskGroup) -> None:
        """Let groups live as tasks of ``tasks``, in the order in which their rollouts would go on."""
        lives = [(group, member) for group in groups for member in group.members if not member.is_over]
        self.open.update((group.asked.index, group) for group, _ in lives)
        for group, member in sorted(lives, key=lambda life: life[1].turn):
            tasks.create_task(self._live(group, member), name=member.request.id)

    @property
    def num_under_way(self) -> int:
        """Rollouts asked for of which something is still to come."""
        return sum(not member.is_over for group in self.open.values() for member in group.members)

    def standing(self) -> str:
        """Who is under way, for a message."""
        waiting = [(g.asked.started_s, m) for g in self.open.values() for m in g.members if not m.is_over]
        if not waiting:
            return "no rollout is under way"
        asked_s, oldest = min(waiting, key=lambda pair: pair[0])
        stage = "its reward" if oldest.completion is not None else oldest.engine or "an engine with room"
        return (
            f"{len(waiting)} rollouts are under way, the oldest, {oldest.request.id}, asked for "
            f"{self.clock.now() - asked_s:.0f} seconds ago, waits for {stage}"
        )

    def floor(self) -> int:
        """No token under way, nor one that is sampled from now on by an engine that has not changed its weights, has an
        older version; ``NOT_YET`` if nothing is under way."""
        return min((member.floor for group in self.open.values() for member in group.members), default=NOT_YET)

    async def _live(self, group: Underway, member: Member) -> None:
        try:
            if member.completion is None:
                await self._sample(group, member)
            if member.completion is not None and not member.has_failed:
                await self._judge(group, member, member.completion)
        except NonFiniteError as error:
            if error.rollout_id == member.request.id:
                self.ledger.close(member.request.id, "failed:non-finite")
                member.has_failed = True
            raise
        self.num_over += 1
        if all(other.is_over for other in group.members):
            self._complete(group)

    async def _sample(self, group: Underway, member: Member) -> None:
        place = (group.asked.index, group.members.index(member))
        try:
            async with asyncio.timeout_at(group.asked.started_s + self.faults.rollout_s):
                member.completion = await self._sampled(member, place)
        except TimeoutError:
            self._fail(
                member,
                "deadline",
                f"rollout {member.request.id} had no last token {self.faults.rollout_s:g} seconds after it was asked "
                f"for (engine {member.engine or 'not yet found'}); raise faults.rollout_s if that is just slow",
            )
            return
        member.sampled_s = self.clock.now()
        member.turn = self.streaks.num_sampled
        self.streaks = replace(self.streaks, num_sampled=member.turn + 1)
        member.judged_s = self.clock.due("reward")
        self._show(member, member.completion, group.asked.started_s)

    def _show(self, member: Member, completion: Completion, started_s: float) -> None:
        version = completion.version
        first, last = int(version.min(initial=member.floor)), int(version.max(initial=member.floor))
        changes = [(when, version) for when, version in self.loads if first < version <= last]
        times = started_s, member.sampled_s
        self.timeline.rollout(member.engine, member.request.id, completion, times, changes)

    async def _sampled(self, member: Member, place: tuple[int, int]) -> Completion:
        def taken(engine: str, version: int) -> None:
            so_far = member.request.so_far
            member.engine = engine
            member.floor = version if so_far is None else min(version, int(so_far.version.min(initial=version)))

        def again(engine: str, version: int) -> GenerationRequest:
            member.num_restarts += 1
            member.request = replace(member.request, so_far=None)
            taken(engine, version)
            return member.request

        while True:
            try:
                return await self.pool.generate(member.request, place, taken, again)
            except EngineLostError:  # what it had sampled died with it
                member.num_restarts += 1
                member.engine, member.floor = "", NOT_YET

    async def _judge(self, group: Underway, member: Member, completion: Completion) -> None:
        request, asked = member.request, group.asked
        answer = self.reader.answer(request.id, completion)
        try:
            async with asyncio.timeout_at(member.sampled_s + self.faults.reward_s):
                await self.clock.until(member.judged_s)
                judgement = await self.score(asked.prompt, answer)
        except RewardError as error:
            self._fail(member, "reward", str(error), error)
            return
        except TimeoutError:
            self._fail(
                member,
                "reward-deadline",
                f"the reward of rollout {request.id} was not there after faults.reward_s = {self.faults.reward_s:g} "
                f"seconds; the response was {answer.text!r}",
            )
            return
        now = self.clock.now()
        rollout = Rollout(
            id=request.id,
            prompt=asked.prompt,
            completion=completion,
            text=answer.text,
            reward=judgement.reward,
            judgement=judgement,
            started_s=asked.started_s,
            finished_s=now,
            sampled_s=member.sampled_s,
            finished_at=self.updates(),
            num_restarts=member.num_restarts,
        )
        if now > member.sampled_s:
            self.timeline.span(REWARDS, "reward", member.sampled_s, now, id=request.id)
        if self.evaluator is not None:
            rollout = replace(rollout, logp_old=await self.evaluator.score(rollout))
        member.rollout = rollout
        self.streaks = replace(self.streaks, failed=0)
        self.ledger.finish(member.rollout)

    def _fail(self, member: Member, why: str, message: str, cause: Exception | None = None) -> None:
        """Count a rollout that came to nothing; stop the run if all do."""
        if member.completion is not None:
            self.ledger.sampled(member.request.id, member.completion, member.sampled_s, member.num_restarts)
        self.ledger.close(member.request.id, f"failed:{why}")
        member.has_failed = True
        self.streaks = replace(self.streaks, failed=self.streaks.failed + 1)
        if self.streaks.failed >= self.faults.most_failed:
            raise TetherError(
                f"{self.streaks.failed} rollouts of task {self.task!r} failed in a row, the most that "
                f"faults.most_failed allows; the last: {message}"
            ) from cause
        if why not in self.kinds_told:
            self.kinds_told.add(why)
            self.told(f"a rollout failed, and its group goes on without it: {message}")

    def _complete(self, group: Underway) -> None:
        """Nothing more comes: hand the group on, or take it out."""
        asked = group.asked
        del self.open[asked.index]
        rollouts = tuple(member.rollout for member in group.members if member.rollout is not None)
        if len(rollouts) < min(LEAST_SURVIVORS, len(group.members)):
            self._remove(asked.index, rollouts, TOO_FEW)
            self.streaks = replace(self.streaks, few=self.streaks.few + 1)
            if self.streaks.few >= self.faults.most_failed:
                raise TetherError(
                    f"{self.streaks.few} groups of task {self.task!r} in a row had fewer than {LEAST_SURVIVORS} "
                    "rollouts that did not fail, the most that faults.most_failed allows; the last was of prompt "
                    f"{asked.prompt.id!r}: tether ledger RUN says why they failed"
                )
            return
        self.streaks = replace(self.streaks, few=0)
        whole = Group(id=asked.id, index=asked.index, rollouts=rollouts)
        self.measured(whole)
        fate = self.selection.filtered(whole)
        if fate is None:
            self.streaks = replace(self.streaks, flat=0)
            self.buffer.finish(whole)
            return
        self.streaks = replace(self.streaks, flat=self.streaks.flat + 1)
        self._remove(asked.index, rollouts, fate)
        if self.streaks.flat >= self.selection.most_flat:
            rewards = ", ".join(f"{rollout.reward:g}" for rollout in rollouts[:4])
            raise TetherError(
                f"{self.streaks.flat} groups of task {self.task!r} in a row had equal rewards and were filtered, the "
                f"most that selection.most_flat allows; the last, of prompt {asked.prompt.id!r}, had {rewards} "
                f"({fate}): change the task's difficulty or the reward, or train on flat groups"
            )

    def _remove(self, index: int, rollouts: Iterable[Rollout], fate: str) -> None:
        for rollout in rollouts:
            self.ledger.close(rollout.id, fate)
        self.buffer.remove(index)
