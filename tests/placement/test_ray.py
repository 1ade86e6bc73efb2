"""What can be said of the placement ``ray`` without starting one."""

import asyncio
import os
import pickle
import re
import subprocess
import sys
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tether
from tests.pipeline.making import random_groups
from tests.pipeline.small import step_of
from tether.config.learning import makers_of
from tether.config.recipe import from_tables, load
from tether.errors import ConfigError, EngineLostError, ProcessLostError
from tether.pipeline.publisher import Publisher
from tether.pipeline.scoring import Scores
from tether.pipeline.stopwatch import Stopwatch
from tether.placement.deadlines import Deadlines
from tether.placement.inline import Inline
from tether.placement.keeper import birth_of
from tether.placement.parts import Notices
from tether.placement.ray import Ray
from tether.placement.ray_engine import RayEngine
from tether.placement.ray_host import moved
from tether.placement.ray_learner import RayLearner
from tether.placement.ray_process import Process, ProcessDiedError
from tether.placement.ray_room import shares
from tether.placement.ray_session import _connect, check_installed, check_reachable, check_shared_memory
from tether.placement.real_time import RealClock
from tether.placement.restarts import Restarts
from tether.ports import EngineCapabilities, Publication, RolloutEngine
from tether.records import Metrics

from .parts_on_ray import is_alive


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("kind=slurm", "no placement 'slurm'; there are inline, ray"),
        ("kind=ray", None),
        ("threads=0", r"placement.threads must lie in 1 .. 1024; got 0"),
        ("object_store_bytes=1000", r"placement.object_store_bytes must lie in 83886080 .. 2\^50; got 1000"),
        ("heartbeat_s=0.1", r"placement.heartbeat_s must lie in 1 .. 1e9 seconds; got 0.1"),
        ("max_restarts=-1", r"placement.max_restarts must lie in 0 .. 10\^6; got -1"),
        ("engines=0", r"placement.engines must lie in 1 .. 4096; got 0"),
        ("reward_workers=-1", r"placement.reward_workers must lie in 0 .. 4096; got -1"),
        ("spread=thin", r"placement.spread"),
        ("weights=directory", r"placement.weights_folder is for placement.weights = 'directory', which needs one"),
        ("weights_folder=/tmp", r"got weights 'object-store' and weights_folder '/tmp': set both, or neither"),
        ("deadlines.step_s=0", r"placement.deadlines.step_s must be above 0 and at most 1e\+09 seconds; got 0"),
        ("deadlines.lunch_s=1", r"unknown key placement.deadlines.lunch_s; \[placement.deadlines\] has start_s, "),
        ("costs.reward_s=1", r"unknown key placement.costs; \[placement\] has address, .*, kind"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting, message):
    settings = ("placement.kind=ray", f"placement.{setting}")
    if message is None:
        assert load(settings=settings).placement == Ray()
        return
    with pytest.raises(ConfigError, match=message):
        load(settings=settings)


def test_a_resolved_recipe_is_a_recipe_of_the_same_placement():
    recipe = load(settings=("placement.kind=ray", "placement.deadlines.step_s=7"))
    tables = {name: table for name, table in recipe.resolved().items() if name not in ("recipe", "derived")}
    assert tables["placement"]["kind"] == "ray"
    assert tables["placement"]["deadlines"]["step_s"] == 7.0
    assert from_tables({"placement": tables["placement"]}).placement == recipe.placement
    assert load().placement == Inline()


def test_without_ray_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs Ray, .*pip install 'tether-rl\[ray\]', or use placement.kind=inline"):
        check_installed()


def test_a_bound_that_shared_memory_cannot_hold_is_refused(tmp_path):
    check_shared_memory(1, tmp_path)
    with pytest.raises(ConfigError, match=r"must fit into .*bytes free; got \d+: lower it .*--shm-size=2g"):
        check_shared_memory(2**60, tmp_path)
    check_shared_memory(2**60, tmp_path / "there is none")


def test_a_cluster_that_cannot_be_reached_is_named():
    class Away:
        def init(self, address: str, **_: object) -> None:
            raise ConnectionError("nobody answers\nfor long")

    with pytest.raises(ConfigError, match=r"^there is no Ray at '10.0.0.1:6379': nobody answers; mend that, or use"):
        _connect(Away(), "10.0.0.1:6379")
    with pytest.raises(ConfigError, match=r"^Ray cannot be started here: nobody answers; "):
        _connect(Away(), "local")


def test_a_place_at_which_nobody_answers_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"^there is no Ray at '127.0.0.1:1': .*ray start --head"):
        check_reachable("127.0.0.1:1")


def test_a_numbered_gpu_is_refused():
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match=r"run.device must be auto, cpu or cuda under ray, which hands out GPUs"):
        Ray(object_store_bytes=2**27).check("cuda:1")


@pytest.mark.parametrize(("there", "share"), [(1.0, 0.5), (2.0, 1.0), (8.0, 1.0)])
def test_each_process_with_a_model_gets_a_gpu_or_half_of_the_only_one(there, share):
    assert Ray().bundles("cuda", there)["engine-0"]["GPU"] == share
    assert "GPU" not in Ray().bundles("cpu", there)["engine-0"]
    with pytest.raises(ConfigError, match="needs a GPU that Ray can hand out"):
        Ray().bundles("cuda", 0.0)


@given(st.integers(2, 40), st.integers(1, 48))
def test_shares_of_gpus_fit_the_gpus_that_are_there(models, there):
    learner, other = shares(models, float(there))
    assert 0 < other <= learner <= 1
    if learner == 1:
        assert (models - 1 if other == 1 else -(-(models - 1) // int(1 / other))) <= there - 1
    else:
        assert (there, models * learner <= 1) == (1, True)


def test_every_process_has_a_bundle_of_its_own_role():
    bundles = Ray(engines=2, reward_workers=1, threads=4).bundles("cpu", 0.0, has_evaluator=True)
    assert bundles == {
        "learner": {"CPU": 4.0},
        "engine-0": {"CPU": 4.0},
        "engine-1": {"CPU": 4.0},
        "evaluator": {"CPU": 4.0},
        "reward-0": {"CPU": 1.0},
    }


def test_a_run_without_ray_does_not_import_it():
    at_import = re.compile(r"^(import ray\b|from ray\b)", re.MULTILINE)
    assert at_import.search("import ray\n")
    assert not [path for path in Path(tether.__file__).parent.rglob("*.py") if at_import.search(path.read_text())]


def test_makers_travel_by_pickle():
    makers = makers_of(load(), "cpu")
    assert pickle.loads(pickle.dumps(makers)).learner.args == makers.learner.args


# --- time


def test_the_clock_begins_where_the_run_stopped_and_goes_on_by_itself():
    async def main():
        clock = RealClock()
        seen = [clock.now()]
        await clock.spend("generate_token", 1e9)
        await clock.until(clock.due("reward") + 0.05)
        with clock.free():
            await clock.quiet()
        return [*seen, clock.now()]

    first, last = Ray().run(main(), start_s=40.0)
    assert 40.0 <= first < 45.0
    assert first + 0.05 <= last < first + 5.0


# --- an engine that dies, with processes that stand in for real ones


class Script(Process):
    """A process that dies at some of its calls."""

    def __init__(self, dies_at: tuple[int, ...] = (), dies_at_start: bool = False) -> None:
        self.role = "engine-0"
        self.facts = {"role": "engine-0", "pid": 7, "host": "here"}
        self.dies_at, self.dies_at_start = dies_at, dies_at_start
        self.calls: list[str] = []
        self.outcomes: list[tuple[int, bool, object]] = []
        self.has_ended = False

    about: object = EngineCapabilities(logp="processed", entropy=True, alternatives=True, token_versions=True)

    def started(self, within_s):
        return self.about

    async def starting(self, within_s):
        if self.dies_at_start:
            raise ProcessDiedError("engine-0 (pid 7) died")

    def post(self, name, *args):
        if name == "submit":
            tickets, letter = args
            self.outcomes += [(n, True, f"{what}!") for n, what in zip(tickets, pickle.loads(letter), strict=True)]

    async def call(self, name, *args, deadline, within_s, **options):
        self.calls.append(name)
        self.options = options
        await asyncio.sleep(0)
        if len(self.calls) in self.dies_at:
            raise ProcessDiedError("engine-0 (pid 7) died")
        if name == "score":
            nothing = np.empty(0, np.float32)
            return Scores(published=nothing, previous=None, current=None, wider=None, narrower=None, apart=None), 0.5
        if name == "collect":
            done, self.outcomes = self.outcomes, []
            return pickle.dumps((done, 2.5)), 0.0
        return (("abc", args[0].version), 1.5), 0.0

    def end(self):
        self.has_ended = True


def learner_of(script: Script) -> RayLearner:
    script.about = {"vocabulary": None, "sharing": None, "remark": "", "acquires": False}
    learner = RayLearner(script, Deadlines(), Stopwatch(), Notices())
    learner.started()
    return learner


def engine_of(*scripts: Script, max_restarts: int = 2) -> tuple[RayEngine, list]:
    told: list = []
    notices = Notices()
    notices.listen(told.append, told.append)
    waiting = iter(scripts)
    engine = RayEngine(partial(next, waiting), Deadlines(), Restarts(max_restarts, notices), notices)
    engine.started()
    return engine, told


PUBLICATION = Publication(version=8, fingerprint="abc", num_bytes=1)


async def asked(engine: RayEngine, *requests: str) -> list:
    """What comes of requests to an engine that has weights."""
    await engine.load(PUBLICATION)
    return await asyncio.gather(*(engine.generate(request) for request in requests), return_exceptions=True)


def test_seconds_are_counted_where_the_work_is_done():
    engine, _ = engine_of(Script())
    assert asyncio.run(engine.load(PUBLICATION)) == "abc"
    assert (engine.version, engine.busy_s) == (8, 1.5)
    assert asyncio.run(asked(engine, "a", "b")) == ["a!", "b!"]
    assert engine.busy_s == 2.5


def test_who_asks_a_dead_engine_is_told_once_a_new_one_stands_there_without_weights():
    first, second = Script(dies_at=(2,)), Script()
    engine, told = engine_of(first, second)
    lost = asyncio.run(asked(engine, "a", "b"))
    assert [type(error) for error in lost] == [EngineLostError] * 2
    assert str(lost[0]) == "engine-0 (pid 7) died; a new one was started"
    assert (first.has_ended, engine.version, engine.busy_s) == (True, -1, 1.5)
    assert [t for t in told if isinstance(t, str)] == ["engine-0 (pid 7) died; it is started anew (1 of 2)"]
    assert len([t for t in told if isinstance(t, dict)]) == 2
    with pytest.raises(EngineLostError, match="holds no weights yet"):
        asyncio.run(engine.generate("a"))
    assert asyncio.run(asked(engine, "a")) == ["a!"]
    assert engine.busy_s == 4.0  # of both processes


def test_restarts_are_bounded_also_when_the_new_ones_die_at_once():
    engine, _ = engine_of(Script(dies_at=(2,)), Script(dies_at_start=True), Script(dies_at_start=True), Script())
    [error] = asyncio.run(asked(engine, "a"))
    assert type(error) is ProcessLostError
    assert "started anew 2 times already, the most that placement.max_restarts" in str(error)


def test_a_load_that_the_engine_dies_over_is_made_again_with_the_same_version():
    engine, _ = engine_of(Script(dies_at=(1,)), Script())
    publisher = Publisher(learner_of(Script()), {"engine-0": engine}, RealClock())
    asyncio.run(publisher.load(PUBLICATION))
    assert (publisher.version, engine.version) == (8, 8)


def test_a_new_engine_takes_the_version_that_the_one_before_it_held_and_is_checked():
    async def check(name: str, engine: RolloutEngine, publication: Publication) -> Metrics:
        checked.append((name, publication.version))
        return {}

    checked: list[tuple[str, int]] = []
    engine, _ = engine_of(Script(dies_at=(2,)), Script())
    publisher = Publisher(learner_of(Script()), {"engine-0": engine}, RealClock(), (check,))
    asyncio.run(publisher.load(PUBLICATION))
    [error] = asyncio.run(lost(engine))
    assert type(error) is EngineLostError
    asyncio.run(publisher.revive("engine-0"))
    assert (engine.version, checked) == (8, [("engine-0", 8)] * 2)


async def lost(engine: RayEngine) -> list:
    return await asyncio.gather(engine.generate("a"), return_exceptions=True)


def test_what_the_learner_need_not_score_is_not_sent_to_it():
    script = Script()
    asyncio.run(learner_of(script).acquire([], ()))
    assert script.calls == []


@pytest.mark.parametrize("formats", [True, False])
def test_a_learner_is_asked_for_what_was_asked(formats):
    script = Script()
    asyncio.run(learner_of(script).score([], PUBLICATION, 1.0, formats=formats))
    assert (script.calls, script.options) == (["score"], {"formats": formats})


def test_a_dead_learner_cannot_be_started_anew():
    learner = learner_of(Script(dies_at=(1,)))
    with pytest.raises(ProcessLostError, match="weights since the last checkpoint went with it: go on with tether"):
        asyncio.run(learner.publish())


# --- the last one out


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processes are told apart by /proc")
@pytest.mark.parametrize("how", ["closed", "killed"])
def test_the_keeper_ends_what_it_was_told_and_removes_the_folder(tmp_path, how):
    folder = tmp_path / "session"
    folder.mkdir()
    sleeper = subprocess.Popen(["sleep", "600"])
    code = (
        "import os, signal, sys\n"
        "from tether.placement.keeper import Keeper\n"
        f"keeper = Keeper({str(folder)!r})\n"
        f"keeper.watch({sleeper.pid})\n"
        + ("keeper.close()" if how == "closed" else "os.kill(os.getpid(), signal.SIGKILL)")
    )
    subprocess.run([sys.executable, "-c", code], check=how == "closed")
    assert not is_alive(sleeper.pid)
    sleeper.wait()
    deadline = time.monotonic() + 10
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not folder.exists()


def test_a_process_that_is_gone_has_no_birth():
    assert birth_of(os.getpid()) == birth_of(os.getpid()) != ""
    assert birth_of(2**22 + 1) == ""


# --- a step that comes packed in ordinary memory


def test_every_tensor_of_a_micro_batch_is_moved_to_the_learners_device():
    [micro_batch] = step_of(random_groups(0, 2, 4)).micro_batches
    there = moved(micro_batch, "meta")
    for record, other in ((micro_batch, there), (micro_batch.inputs, there.inputs)):
        tensors = {name: value for name, value in vars_of(record).items() if isinstance(value, torch.Tensor)}
        assert len(tensors) >= 4
        for name, tensor in tensors.items():
            assert vars_of(other)[name].device.type == "meta", name
            assert vars_of(other)[name].shape == tensor.shape
    assert there.rows == micro_batch.rows


def vars_of(record) -> dict[str, object]:
    return {f.name: getattr(record, f.name) for f in fields(record)}
