"""Checkpoints that are written beside the training."""

import asyncio
import random
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from tether.errors import ResumeError, StalledError
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.capture import HostCopies
from tether.pipeline.checkpoint import CheckpointOptions, Checkpoints
from tether.pipeline.learner import LocalLearner
from tether.pipeline.loops import LoopsState
from tether.pipeline.pool import PoolState
from tether.pipeline.rolling import NOT_YET, Member, Streaks, Underway
from tether.pipeline.rollouts import Asked
from tether.pipeline.saving import Saver, partials_of
from tether.pipeline.snapshot import Snapshot, going_on, read_snapshot, write_snapshot
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.writing import ThreadWriting
from tether.ports import GenerationRequest
from tether.records import Completion, Grade, Judgement, Metric, Prompt
from tether.weights.memory import MemoryStore

from .making import CountingLearner, completion_of, rollout_of
from .small import Bench, algorithm_of, loaded_of, step_of

OFFSETS = {"events.jsonl": 3}


def learner_of(**options) -> tuple[LocalLearner, Bench]:
    bench = Bench(loaded_of())
    trainer = bench.trainer(algorithm_of(), lr=1e-3, **options)
    learner = LocalLearner(
        trainer=trainer,
        store=MemoryStore("bfloat16"),
        evaluator=lambda updates, weights: pytest.fail("nobody evaluates here"),
        loaded=bench.loaded,
        dtype="float32",
        token_budget=4096,
    )
    asyncio.run(learner.publish())
    return learner, bench


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_checkpoint_written_while_steps_are_made_is_byte_equal_to_one_written_while_everything_stands_still(
    tmp_path, dtype
):
    written = []
    for name in ("still", "meanwhile"):
        learner, bench = learner_of(dtype=dtype)
        steps_are_done = threading.Event()

        def into(write, name=name, steps_are_done=steps_are_done) -> None:
            if name == "meanwhile":
                assert steps_are_done.wait(60)
            write(tmp_path / name)

        async def work(learner=learner, bench=bench, into=into, name=name, done=steps_are_done) -> None:
            await learner.step(step_of(bench.groups))
            for seeded in (torch.manual_seed, random.seed, np.random.seed):
                seeded(0)
            writing = await learner.save(into, lambda: None)
            if name == "still":
                await writing.wait()
            before = {key: value.clone() for key, value in learner.trainer.policy.model.state_dict().items()}
            for _ in range(3):
                await learner.step(step_of(bench.groups))
                await learner.publish()
            moved = learner.trainer.policy.model.state_dict()
            assert any(not torch.equal(before[key], moved[key]) for key in before)
            assert learner.updates == 4
            done.set()
            await writing.wait()

        asyncio.run(work())
        written.append(files_of(tmp_path / name))
    still, meanwhile = written
    assert {"model.safetensors", "state/learner.pt"} <= still.keys()
    assert still.keys() == meanwhile.keys()
    assert [name for name in still if still[name] != meanwhile[name]] == []


def test_a_weight_that_model_and_trainer_share_is_copied_once():
    learner, _ = learner_of()
    copies = HostCopies()
    state, model = copies(learner.trainer.state()), copies.model(learner.loaded.model)
    places = {parameter.data_ptr() for parameter in model.parameters()}
    assert {tensor.data_ptr() for tensor in state["parameters"].values()} <= places
    assert not places & {parameter.data_ptr() for parameter in learner.loaded.model.parameters()}


def test_what_goes_first_is_done_before_anything_is_written(tmp_path):
    learner, _ = learner_of()
    told: list[str] = []

    async def work() -> None:
        writing = await learner.save(lambda write: told.append("written"), lambda: told.append("first"))
        await writing.wait()

    asyncio.run(work())
    assert told == ["first", "written"]


# --- one at a time, and nothing that went wrong is lost


class Gate(CountingLearner):
    """A learner whose checkpoints are written when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.error: Exception | None = None
        self.begun: list[int] = []

    async def acquire(self, rollouts, alive):
        raise NotImplementedError

    async def old_publications(self):
        return ()

    async def save(self, into, first):
        def work() -> None:
            first()
            assert self.may_end.wait(60)
            if self.error is not None:
                raise self.error
            into(lambda folder: (folder / "state").mkdir(parents=True))

        self.begun.append(len(self.begun))
        return ThreadWriting(work)


def saver_of(home: Path) -> tuple[Saver, Gate]:
    gate = Gate()
    saver = Saver(
        checkpoints=Checkpoints(home),
        options=CheckpointOptions(),
        learner=gate,
        watch=Stopwatch(),
        sync=lambda: None,
    )
    return saver, gate


def snapshot_of(*groups: Underway, partials=None, pool: PoolState | None = None) -> Snapshot:
    from tether.evals.history import History
    from tether.pipeline.alarms import Alarms

    return Snapshot(
        now_s=1.5,
        loops=LoopsState(
            done=2,
            buffer=GroupBuffer(4, 8).state(),
            open=groups,
            pool=pool or PoolState(engines={}, flights={}, idle={}),
            streaks=Streaks(),
            asking_s=None,
            waits={},
            loads=(),
            kinds_told=(),
        ),
        partials=partials or {},
        open_lines=(),
        evaluations=History(),
        alarms=Alarms(),
        skipped=0,
    )


def test_a_look_does_not_wait_and_an_end_does(tmp_path):
    async def work() -> None:
        saver, gate = saver_of(tmp_path)
        await saver.begin(2, snapshot_of(), OFFSETS)
        await saver.look()
        assert not (tmp_path / "checkpoints/step-000002").exists()
        threading.Timer(0.05, gate.may_end.set).start()
        await saver.end()
        assert (tmp_path / "checkpoints/step-000002/state/manifest.json").is_file()
        assert saver.watch.lap()["checkpoint_write"] >= 0.04
        await saver.end()
        assert await saver.close() is None

    asyncio.run(work())


@pytest.mark.parametrize("how", ["look", "end", "close"])
def test_what_went_wrong_with_a_checkpoint_is_told_once(tmp_path, how):
    async def work() -> None:
        saver, gate = saver_of(tmp_path)
        gate.error = ResumeError("no room")
        await saver.begin(2, snapshot_of(), OFFSETS)
        gate.may_end.set()
        while how == "look" and not saver._writing.is_done:
            await asyncio.sleep(0.01)
        if how == "close":
            assert str(await saver.close()) == "no room"
        else:
            with pytest.raises(ResumeError, match="no room"):
                await getattr(saver, how)()
        await saver.end()
        assert await saver.close() is None

    asyncio.run(work())


def test_a_wait_that_is_broken_off_leaves_the_writing_to_be_closed(tmp_path, monkeypatch):
    async def work() -> None:
        saver, gate = saver_of(tmp_path)
        await saver.begin(2, snapshot_of(), OFFSETS)

        def broken_off(self, timeout=None):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "join", broken_off)
            with pytest.raises(KeyboardInterrupt):
                await saver.end()
        gate.may_end.set()
        assert await saver.close() is None
        assert (tmp_path / "checkpoints/step-000002").is_dir()

    asyncio.run(work())


def test_a_run_that_is_over_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("tether.pipeline.writing.PATIENCE_S", 0.05)
    may_end = threading.Event()
    writing = ThreadWriting(lambda: may_end.wait(60))
    assert "was given up; the earlier ones are whole" in str(asyncio.run(writing.close()))
    may_end.set()
    asyncio.run(writing.wait())


def test_a_watchdog_that_breaks_off_the_last_wait_is_what_went_wrong(monkeypatch):
    may_end = threading.Event()
    writing = ThreadWriting(lambda: may_end.wait(60))

    def barks(self, timeout=None):
        raise StalledError("it hangs")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", barks)
        assert str(asyncio.run(writing.close())) == "it hangs"
    may_end.set()
    asyncio.run(writing.wait())


# --- what was sampled in part


PROMPT = Prompt(id="p/0", text="?", token_ids=(3, 4), reference="!")


def member_of(number: int, **about) -> Member:
    request = GenerationRequest(id=f"g0/{number}", prompt_ids=(3, 4), seed=number, max_tokens=8, temperature=1.0)
    return Member(request=request, **about)


def group_of(*members: Member) -> Underway:
    requests = tuple(member.request for member in members)
    return Underway(asked=Asked(id="g0", index=0, prompt=PROMPT, requests=requests, started_s=0.0), members=[*members])


def partial_of(count: int, version: int = 3) -> Completion:
    return replace(completion_of([2] * count, version=version), finish="interrupted")


def test_a_rollout_goes_on_with_what_was_sampled_of_it_and_keeps_its_floor():
    sampled = member_of(0, floor=3, engine="engine-0")
    (group,) = going_on(snapshot_of(group_of(sampled), partials={"g0/0": partial_of(2)}), "keep").open
    (member,) = group.members
    assert len(member.request.so_far) == 2
    assert (member.floor, member.engine, member.num_restarts) == (3, "", 0)


def test_a_rollout_that_had_ended_and_was_on_its_way_to_its_caller_is_only_judged():
    ended = completion_of([2, 1], version=3)
    sampled = member_of(0, floor=3, engine="engine-0")
    (group,) = going_on(snapshot_of(group_of(sampled), partials={"g0/0": ended}), "keep").open
    (member,) = group.members
    assert (member.completion, member.sampled_s, member.num_restarts) == (ended, 1.5, 0)


def test_a_rollout_of_which_nothing_was_sampled_begins_anew_and_is_counted():
    members = [
        member_of(0, floor=3, engine="engine-0"),
        member_of(1, floor=3, engine="engine-0"),
        member_of(2),
    ]
    (group,) = going_on(snapshot_of(group_of(*members), partials={"g0/1": partial_of(0)}), "keep").open
    assert [member.request.so_far for member in group.members] == [None] * 3
    assert [member.num_restarts for member in group.members] == [1, 1, 0]
    assert [member.floor for member in group.members] == [NOT_YET] * 3


def test_what_an_earlier_resume_kept_is_kept_where_the_engine_told_nothing_more():
    member = member_of(0, floor=1, engine="engine-0")
    member.request = replace(member.request, so_far=partial_of(4, version=1))
    (group,) = going_on(snapshot_of(group_of(member)), "keep").open
    assert (len(group.members[0].request.so_far), group.members[0].num_restarts) == (4, 0)


def test_restart_forgets_what_was_sampled_in_part_also_by_engines_that_can_tell_it():
    pool = PoolState(engines={"g0/0": "engine-0"}, flights={"engine-0": {"rows": 1}}, idle={"engine-0": (None, 1.0)})
    members = [member_of(0, floor=3, engine="engine-0"), member_of(1, floor=3, engine="engine-1")]
    snapshot = snapshot_of(group_of(*members), partials={"g0/1": partial_of(2)}, pool=pool)
    loops = going_on(snapshot, "restart")
    assert (loops.pool.engines, loops.pool.flights, loops.pool.idle) == ({}, {}, pool.idle)
    assert [(m.request.so_far, m.num_restarts) for m in loops.open[0].members] == [(None, 1)] * 2


def test_flights_and_finished_completions_are_left_as_they_are():
    done = member_of(1, completion=completion_of([2, 1]), floor=3, engine="engine-1", turn=7, judged_s=2.0)
    pool = PoolState(engines={"g0/0": "engine-0"}, flights={"engine-0": {"rows": 1}}, idle={})
    group = group_of(member_of(0, floor=3, engine="engine-0"), done, member_of(2, has_failed=True))
    snapshot = snapshot_of(group, pool=pool, partials={"g0/1": partial_of(1)})
    loops = going_on(snapshot, "keep")
    assert loops.open == (group,)
    assert loops.pool == pool
    restarted = going_on(snapshot, "restart").open[0].members
    assert restarted[1:] == group.members[1:]


def test_a_snapshot_with_partials_is_read_as_it_was_written(tmp_path):
    snapshot = snapshot_of(group_of(member_of(0, floor=3, engine="engine-0")), partials={"g0/0": partial_of(2)})
    write_snapshot(snapshot, tmp_path)
    read = read_snapshot(tmp_path)
    assert read.partials["g0/0"].version.tolist() == [3, 3]
    assert read.loops.open[0].members[0].request == snapshot.loops.open[0].members[0].request


def test_what_the_rewards_said_of_a_finished_rollout_and_what_alarms_have_counted_is_read_again(tmp_path):
    grades = {"math": Grade(value=1.0, status="correct", extracted="2"), "size": Grade(value=-0.5)}
    made = rollout_of("g0/0", [3], partial_of(2), 0.5)
    member = member_of(0)
    member.rollout = replace(made, judgement=Judgement(reward=0.5, grades=grades, is_right=True))
    snapshot = snapshot_of(group_of(member))
    snapshot.alarms.look({"reward/status/math": Metric({"timeout": 49.0}, "sum", 49.0)})
    write_snapshot(snapshot, tmp_path)
    read = read_snapshot(tmp_path)
    assert read.loops.open[0].members[0].rollout.judgement == member.rollout.judgement
    (words,) = read.alarms.look({"reward/status/math": Metric({"timeout": 1.0}, "sum", 1.0)})
    assert "100 % of the answers could not be judged" in words


def test_an_engine_that_is_being_lost_tells_no_partials():
    from tether.errors import EngineLostError

    class Lost:
        async def progress(self):
            raise EngineLostError("died")

    class Alive:
        async def progress(self):
            return {"g0/1": partial_of(2)}

    found = asyncio.run(partials_of({"engine-0": Lost(), "engine-1": Alive()}))
    assert list(found) == ["g0/1"]


def test_into_travels_by_pickle(tmp_path):
    import pickle

    into = partial(
        Checkpoints(tmp_path).put,
        step=2,
        run=partial(write_snapshot, snapshot_of(partials={"g0/0": partial_of(2)})),
        offsets=OFFSETS,
        keep=2,
    )
    pickle.loads(pickle.dumps(into))(lambda folder: (folder / "state").mkdir(parents=True))
    assert len(read_snapshot(tmp_path / "checkpoints/step-000002/state").partials) == 1
