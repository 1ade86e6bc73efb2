"""Whole runs with engine and learner in processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.e2e.quick import SMALL, assert_books_balance
from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.errors import ProcessLostError
from tether.journal import RunView
from tether.records import Event

from .parts_on_ray import is_alive

ROLES = ["learner", "engine-0", "controller, rewards"]
RAY = ("placement.kind=ray", "placement.object_store_bytes=100_000_000", "eval.prompts=0", "checks.prompts=0")


def recipe_of(*settings: str):
    return load(settings=(*SMALL, *RAY, *settings))


def processes(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "processes.jsonl").read_text().splitlines()]


def pid_of(folder: Path, role: str) -> int:
    return [facts["pid"] for facts in processes(folder) if facts["role"] == role][-1]


def is_saved(folder: Path) -> bool:
    """Whether there is a checkpoint; they are written beside the training."""
    return bool(list(folder.glob("checkpoints/step-*/state/manifest.json")))


def killing(folder: Path, role: str, step: int, when=lambda: True):
    """An observer that kills a process, once, after a step, while the engine works on the next block."""
    killed = []

    def look(event: Event) -> None:
        if event.event == "step" and event.step >= step and not killed and when():
            killed.append(pid_of(folder, role))
            os.kill(killed[0], signal.SIGKILL)

    return look


def assert_trained_once_and_fresh_enough(run: RunView, groups: int = 12, size: int = 4) -> None:
    assert run.status == "finished"
    assert_books_balance(run, groups=groups, size=size)
    assert run.balance() == {"trained": groups * size}
    bound = run.config["derived"]["staleness_bound"]
    assert [line.step for line in sorted(run.ledger, key=lambda line: int(line.group[1:]))] == [
        1 + g // 2 for g in range(groups) for _ in range(size)
    ]
    assert max(event.metrics["staleness/max"].value for event in run.steps) <= bound
    assert all(line.step - 1 - line.version_first <= bound for line in run.ledger)


@pytest.mark.long
def test_an_engine_that_is_killed_is_started_anew_and_nothing_is_lost_or_done_twice(ray_here, tmp_path):
    folder = tmp_path / "run"
    train(recipe_of("checks.prompts=2"), folder, observers=(killing(folder, "engine-0", 2),))
    run = RunView(folder)
    assert_trained_once_and_fresh_enough(run)
    assert [facts["role"] for facts in processes(folder)] == [*ROLES, "engine-0"]
    warnings = [event.note for event in run.events if event.event == "warn"]
    assert len(warnings) == 1
    assert "it is started anew (1 of 3)" in warnings[0]
    assert_nobody_is_left(folder)
    for event in run.steps:
        assert event.metrics["time/train_s"].value > 0.001  # measured where the work is done
    assert sum(event.metrics["time/generate_s"].value for event in run.steps) > 0.01
    assert run.model is not None


@pytest.mark.long
def test_a_learner_that_is_killed_stops_the_run_with_the_way_out(ray_here, tmp_path):
    folder = tmp_path / "run"
    dying = killing(folder, "learner", 3, lambda: is_saved(folder))
    with pytest.raises(ProcessLostError, match=r"learner \(pid \d+, .* go on with tether train --resume"):
        train(recipe_of("checkpoint.every=2", "run.steps=40"), folder, observers=(dying,))
    run = RunView(folder)
    assert run.status == "failed"
    assert_books_balance(run, groups=80, size=4, admitted_only=True)
    planned = plan(folder, None, (), told=print)
    assert planned.checkpoint is not None
    go_on(planned)
    assert_trained_once_and_fresh_enough(RunView(folder), groups=80)


@pytest.mark.long
def test_an_engine_that_keeps_dying_stops_the_run_after_as_many_restarts_as_are_allowed(ray_here, tmp_path):
    folder = tmp_path / "run"
    recipe = recipe_of("placement.max_restarts=0")
    with pytest.raises(ProcessLostError, match=r"started anew 0 times already, the most that placement.max_restarts"):
        train(recipe, folder, observers=(killing(folder, "engine-0", 2),))
    assert RunView(folder).status == "failed"


# --- runs of their own, which somebody stops


def command(folder: Path, *settings: str) -> list[str]:
    sets = [f"--set={setting}" for setting in (*SMALL, *RAY, *settings)]
    return [sys.executable, "-m", "tether.cli.app", "train", "--out", str(folder), *sets]


def until_step(folder: Path, step: int, process: subprocess.Popen[str], within_s: float = 180.0) -> None:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        events = folder / "events.jsonl"
        if events.exists() and f'"event":"step","step":{step},' in events.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} did not come")


def stopped_by(
    number: signal.Signals, folder: Path, *settings: str, group: bool = False, saved: bool = False
) -> subprocess.Popen[str]:
    """A run in a session of its own that gets a signal after its third step; the signal may go to all of its group, and
    wait until there is a checkpoint."""
    process = subprocess.Popen(
        command(folder, *settings), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    until_step(folder, 3, process)
    while saved and not is_saved(folder):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.others = descendants(process.pid)
    (os.killpg if group else os.kill)(process.pid, number)
    return process


def descendants(pid: int) -> set[int]:
    import psutil  # Ray brings it along

    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


def assert_nobody_is_left(folder: Path, others: Collection[int] = ()) -> None:
    pids = {facts["pid"] for facts in processes(folder)} | set(others)
    assert not [pid for pid in pids - {os.getpid()} if is_alive(pid)]


@pytest.mark.long
def test_a_controller_that_is_killed_leaves_nobody_behind_and_its_run_goes_on_without_loss(ray_here, tmp_path):
    folder = tmp_path / "run"
    process = stopped_by(signal.SIGKILL, folder, "run.steps=40", "checkpoint.every=2", saved=True)
    process.wait()
    process.stdout.close()
    assert len(process.others) > 5  # Ray's own, too
    assert_nobody_is_left(folder, process.others)
    planned = plan(folder, None, (), told=print)
    assert planned.checkpoint is not None
    go_on(planned)
    assert_trained_once_and_fresh_enough(RunView(folder), groups=80)
    assert [facts["role"] for facts in processes(folder)] == ROLES * 2
    assert_nobody_is_left(folder)


@pytest.mark.long
@pytest.mark.parametrize(("number", "group"), [(signal.SIGINT, True), (signal.SIGTERM, False), (signal.SIGHUP, True)])
def test_a_first_signal_finishes_the_step_saves_and_stops(tmp_path, number, group):
    folder = tmp_path / "run"
    process = stopped_by(number, folder, "run.steps=400", group=group)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 128 + number, said
    assert_nobody_is_left(folder, process.others)
    run = RunView(folder)
    assert run.status == "failed"
    assert run.last("fail").note == "interrupted"
    last = run.steps[-1].step
    assert last < 400
    assert (folder / "checkpoints" / f"step-{last:06d}" / "state" / "manifest.json").is_file()


@pytest.mark.long
def test_a_second_signal_stops_a_run_now(tmp_path):
    folder = tmp_path / "run"
    process = stopped_by(signal.SIGINT, folder, "run.steps=400", "pipeline.group_size=256", group=True)
    os.killpg(process.pid, signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert_books_balance(RunView(folder), groups=800, size=256, admitted_only=True)
    assert_nobody_is_left(folder, process.others)


@pytest.mark.long
def test_rollouts_have_the_versions_and_rewards_that_they_have_inline(ray_here, tmp_path):
    """Staleness is bounded by slots and settling, not by the machine; samples depend on seed, version and ids."""
    settings = (*SMALL, "engine.dtype=float32", "eval.prompts=0")
    train(load(settings=settings), tmp_path / "inline")
    train(recipe_of("engine.dtype=float32"), tmp_path / "ray")
    one, other = (
        {line.id: (line.version_first, line.version_last, line.step, line.fate, line.reward) for line in run.ledger}
        for run in (RunView(tmp_path / "inline"), RunView(tmp_path / "ray"))
    )
    assert one == other


@pytest.mark.long
def test_an_adapter_alone_travels_between_processes_and_is_tried_before_training(ray_here, tmp_path):
    pytest.importorskip("peft")
    settings = ("model.lora_rank=4", "checks.prompts=2", "trainer.lr=0.01", "checkpoint.every=3")
    killed = killing(tmp_path / "run", "engine-0", 4)
    folder = train(recipe_of(*settings), tmp_path / "run", (killed,))  # a new engine has base and no adapter
    run = RunView(folder)
    assert_trained_once_and_fresh_enough(run)
    assert len([facts for facts in processes(folder) if facts["role"] == "engine-0"]) == 2
    whole = RunView(train(recipe_of("run.steps=1"), tmp_path / "whole"))
    (size, *sizes), (of_all, *_) = (
        [event.metrics["publication/bytes"].value for event in view.of("publish")] for view in (run, whole)
    )
    assert sizes
    assert set(sizes) == {size}
    assert size < 0.1 * of_all
    checks = run.of("check")
    assert checks[0].metrics["probe/is_undecided"].value == 0  # version 0 is far from the trial, and arrived
    assert all(event.metrics["probe/distance"].value <= event.metrics["probe/allowed"].value for event in checks)
    assert (folder / "model" / "adapter" / "adapter_model.safetensors").is_file()
