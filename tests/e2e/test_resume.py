import json
import random
import shutil
import signal
from pathlib import Path

import pytest

from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.errors import ConfigError, ResumeError, RunDirectoryError
from tether.journal import RunView
from tether.journal.writer import RunWriter

from .killing import Killer
from .quick import SMALL, assert_books_balance, journal

SETTINGS = (*SMALL, "run.steps=9", "checkpoint.every=2", "pipeline.lag=2", "engine.yield_every=3", "eval.samples=2")
GROUPS, SIZE = 18, 4


@pytest.fixture(scope="module")
def killer() -> Killer:
    return Killer()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, killer) -> tuple[Path, int]:
    """A run that nobody disturbed, and how many points it has at which it could have died."""
    home = tmp_path_factory.mktemp("whole")
    assert killer.run(home / "run", SETTINGS, report=home / "calls") == 0
    return home / "run", int((home / "calls").read_text())


def resume(folder: Path, *settings: str, told=None):
    return go_on(plan(folder, None, settings, told=told or (lambda message: None)))


def assert_as_if_nothing_had_happened(folder: Path, whole: Path) -> None:
    ours, theirs = journal(folder), journal(whole)
    assert ours["events"] == theirs["events"]
    assert ours == theirs
    assert (folder / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
    assert (folder / "report.html").is_file()


def kill_and_resume(out: Path, killer: Killer, whole: tuple[Path, int], seed: int) -> RunView | None:
    """Die at a random point, now and then once more while resuming, and end as the run that never died."""
    reference, num_calls = whole
    numbers = random.Random(seed)
    last = numbers.randint(1, num_calls)
    assert killer.run(out, SETTINGS, last=last) == -signal.SIGKILL, (seed, last)
    if not (out / "config.json").is_file():  # it died before it began
        with pytest.raises((ResumeError, RunDirectoryError)):
            resume(out)
        return None
    for _ in range(numbers.choice([0, 0, 1, 2])):
        killer.run(out, resume=True, last=numbers.randint(1, 60))
    resume(out)
    assert_as_if_nothing_had_happened(out, reference)
    return RunView(out)


@pytest.mark.long  # the default tier has one in test_kill
@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_at_a_random_point_ends_as_the_run_that_never_died(tmp_path, killer, whole, seed):
    if (run := kill_and_resume(tmp_path / "run", killer, whole, seed)) is not None:
        assert_books_balance(run, groups=GROUPS, size=SIZE)
        assert run.status == "finished"


def test_a_run_that_died_between_its_last_checkpoint_and_its_end_has_its_model(tmp_path):
    whole = train(load(settings=(*SMALL, "run.steps=2", "checkpoint.every=1", "eval.prompts=0")), tmp_path / "whole")
    out = Path(shutil.copytree(whole, tmp_path / "run"))
    lines = (out / "events.jsonl").read_bytes().splitlines(keepends=True)
    assert json.loads(lines[-1])["event"] == "finish"
    (out / "events.jsonl").write_bytes(b"".join(lines[:-1]))
    resume(out)
    assert_as_if_nothing_had_happened(out, whole)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 150))
def test_a_run_killed_at_any_of_fifty_random_points_ends_as_the_run_that_never_died(tmp_path, killer, whole, seed):
    if (run := kill_and_resume(tmp_path / "run", killer, whole, seed)) is not None:
        assert_books_balance(run, groups=GROUPS, size=SIZE)
        assert run.status == "finished"


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory) -> Path:
    """A run that was asked to stop during step 5."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    stop_at(out, 5)
    return out


def stop_at(out: Path, step: int, *, settings: tuple[str, ...] = ()) -> None:
    """Ctrl-C while a step's journal is written."""

    def observe(event) -> None:
        if event.event == "step" and event.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(load(settings=(*SETTINGS, *settings)), out, (observe,))


@pytest.fixture
def stopped(tmp_path, stopped_once) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def test_a_stop_finishes_the_step_saves_it_and_leaves_nothing_to_do_twice(stopped, whole):
    run = RunView(stopped)
    assert [event.step for event in run.steps] == [1, 2, 3, 4, 5]
    assert run.last("fail").note == "interrupted"
    assert_books_balance(run, groups=GROUPS, size=SIZE, admitted_only=True)
    assert plan(stopped, None, (), told=pytest.fail).checkpoint.step == 5
    resume(stopped)
    assert_as_if_nothing_had_happened(stopped, whole[0])


def test_what_is_cut_off_is_kept(stopped):
    before = {name: (stopped / name).read_bytes() for name in ("events.jsonl", "ledger.jsonl")}
    checkpoint = plan(stopped, None, (), told=pytest.fail).checkpoint
    resume(stopped)
    for name, content in before.items():
        offset = checkpoint.offsets[name]
        assert (stopped / "rolled-back" / "001" / name).read_bytes() == content[offset:]
        assert content[offset:]
        assert (stopped / name).read_bytes()[:offset] == content[:offset]


def test_a_finished_run_has_nothing_left_to_do(whole):
    planned = plan(whole[0], None, (), told=pytest.fail)
    assert planned.is_finished
    assert planned.checkpoint is None
    with pytest.raises(ConfigError, match="at least the 9 steps that are done; got 5"):
        plan(whole[0], None, ("run.steps=5",), told=pytest.fail)


def test_a_finished_run_can_be_given_more_steps(tmp_path, whole):
    out = Path(shutil.copytree(whole[0], tmp_path / "run"))
    planned = plan(out, None, ("run.steps=12",), told=pytest.fail)
    assert [str(change) for change in planned.changes] == ["run.steps: 9 -> 12"]
    run = RunView(go_on(planned))
    assert [event.step for event in run.steps] == list(range(1, 13))
    assert max(event.metrics["staleness/max"].value for event in run.steps) <= run.config["derived"]["staleness_bound"]
    assert run.balance() == {"trained": 12 * 2 * SIZE}
    assert_books_balance(run, groups=24, size=SIZE)


def test_a_corrupt_checkpoint_is_skipped_with_a_message_and_the_run_ends_the_same(stopped, whole):
    (stopped / "checkpoints/step-000005/state/learner.pt").write_bytes(b"half of it")
    told: list[str] = []
    resume(stopped, told=told.append)
    assert len(told) == 1
    assert "step-000005 is skipped: state/learner.pt is not the file that was written" in told[0]
    assert_as_if_nothing_had_happened(stopped, whole[0])


def test_without_a_whole_checkpoint_the_run_starts_over_and_keeps_what_there_was(stopped, whole):
    for folder in (stopped / "checkpoints").iterdir():
        (folder / "state/manifest.json").unlink()
    events = (stopped / "events.jsonl").read_bytes()
    assert plan(stopped, None, (), told=lambda message: None).checkpoint is None
    resume(stopped)
    assert (stopped / "rolled-back/001/events.jsonl").read_bytes() == events
    assert_as_if_nothing_had_happened(stopped, whole[0])


def test_settings_that_may_change_are_shown_and_taken(stopped):
    planned = plan(stopped, None, ("trainer.lr=2e-5", "algorithm.rule.scale.level=0.8"), told=pytest.fail)
    assert [change.key for change in planned.changes] == ["algorithm.rule.scale.level", "trainer.lr"]
    run = RunView(go_on(planned))
    assert run.config["trainer"]["lr"] == 2e-5
    rates = [event.metrics["policy/lr"].value for event in run.steps]
    assert rates[4] > 2e-5
    assert rates[5:] == [2e-5] * 4


@pytest.mark.parametrize(
    "setting",
    [
        *("run.seed=1", "pipeline.lag=3", "engine.dtype=float32", "task.modulus=5", "trainer.dtype=bfloat16"),
        "algorithm.replay=['routing']",
        *("pipeline.regime=fully-async", "pipeline.updates_per_batch=2"),
        *("selection.flat_groups=filter", "selection.drop_queue=4", "placement.engines=2", "old.strategy=snapshots"),
    ],
)
def test_settings_that_would_break_the_run_are_refused_and_nothing_is_touched(stopped, setting):
    before = sorted(path.name for path in stopped.rglob("*"))
    key = setting.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"cannot go on with other settings of this kind: {key}: .* -> "):
        plan(stopped, None, (setting,), told=pytest.fail)
    assert sorted(path.name for path in stopped.rglob("*")) == before


def test_settings_that_mean_nothing_for_what_a_checkpoint_holds_may_change(stopped):
    settings = (
        *("faults.rollout_s=100.0", "faults.most_failed=3", "selection.most_flat=9"),
        *("checkpoint.partials=restart", "run.trace=false"),
    )
    keys = [change.key for change in plan(stopped, None, settings, told=pytest.fail).changes]
    assert keys == sorted(setting.partition("=")[0] for setting in settings)


def test_a_run_with_checkpoints_of_another_version_is_refused_and_nothing_is_touched(stopped):
    for manifest in stopped.glob("checkpoints/*/state/manifest.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "schema": 1}))
    before = sorted(path.name for path in stopped.rglob("*"))
    with pytest.raises(ResumeError, match=r"it has schema 1, not 3; resume with the version that wrote it"):
        plan(stopped, None, (), told=lambda message: None)
    assert sorted(path.name for path in stopped.rglob("*")) == before


def test_fewer_steps_than_were_made_are_refused(stopped):
    with pytest.raises(ConfigError, match="at least the 5 steps that are done; got 3"):
        plan(stopped, None, ("run.steps=3",), told=pytest.fail)


def test_a_run_that_is_being_written_is_left_alone(stopped):
    planned = plan(stopped, None, (), told=pytest.fail)
    with RunWriter.reopen(stopped):
        with pytest.raises(RunDirectoryError, match=r"one writer at a time.*wait for it, or stop it first"):
            go_on(planned)
        with pytest.raises(RunDirectoryError, match="one writer at a time"):
            plan(stopped, None, (), told=pytest.fail)
    assert not (stopped / "rolled-back").exists()


def test_a_journal_that_lost_lines_goes_back_to_a_checkpoint_that_it_still_reaches(stopped, whole):
    offsets = plan(stopped, None, (), told=pytest.fail).checkpoint.offsets
    content = (stopped / "ledger.jsonl").read_bytes()
    (stopped / "ledger.jsonl").write_bytes(content[: offsets["ledger.jsonl"] - 5])
    told: list[str] = []
    resume(stopped, told=told.append)
    assert "step-000005 is skipped: ledger.jsonl has lost lines that it had then" in told[0]
    assert_as_if_nothing_had_happened(stopped, whole[0])


def test_a_run_that_went_on_after_it_was_looked_at_is_left_alone(stopped):
    planned = plan(stopped, None, (), told=pytest.fail)
    resume(stopped)
    before = (stopped / "events.jsonl").read_bytes()
    with pytest.raises(ResumeError, match="has gone on since it was looked at; nothing was touched"):
        go_on(planned)
    assert (stopped / "events.jsonl").read_bytes() == before


@pytest.mark.parametrize("config", ["{}", '{"run": {"steps": 12}}'])
def test_settings_that_are_damaged_are_one_message(stopped, config):
    (stopped / "config.json").write_text(config)
    with pytest.raises(ResumeError, match=r"config\.json must have the run's settings; it lacks recipe, "):
        plan(stopped, None, (), told=pytest.fail)


def test_a_stop_before_the_first_step_starts_over(tmp_path, whole):
    out = tmp_path / "run"

    def observe(event) -> None:
        if event.event == "start":
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt) as stop:
        train(load(settings=SETTINGS), out, (observe,))
    assert stop.value.exit_code == 128 + signal.SIGTERM
    assert RunView(out).steps == ()
    resume(out)
    assert_as_if_nothing_had_happened(out, whole[0])


def test_a_second_signal_stops_now_and_the_books_are_closed(tmp_path, whole):
    out = tmp_path / "run"

    def observe(event) -> None:
        if event.event == "step" and event.step == 5:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(load(settings=SETTINGS), out, (observe,))
    run = RunView(out)
    assert run.steps[-1].step == 5
    assert_books_balance(run, groups=GROUPS, size=SIZE, admitted_only=True)
    assert plan(out, None, (), told=pytest.fail).checkpoint.step == 4
    resume(out)
    assert_as_if_nothing_had_happened(out, whole[0])


@pytest.mark.long
def test_a_run_stopped_again_and_again_ends_the_same(tmp_path, whole):
    out = tmp_path / "run"
    stop_at(out, 1)
    for step in (3, 4, 8):

        def observe(event, step=step) -> None:
            if event.event == "step" and event.step == step:
                signal.raise_signal(signal.SIGHUP)

        with pytest.raises(KeyboardInterrupt):
            go_on(plan(out, None, (), told=pytest.fail), (observe,))
    resume(out)
    assert_as_if_nothing_had_happened(out, whole[0])
    assert sorted(path.name for path in (out / "rolled-back").iterdir()) == ["001", "002", "003", "004"]
