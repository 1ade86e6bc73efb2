import shutil
import signal
from pathlib import Path

import pytest

from tether.cli import app
from tether.journal import RunView
from tether.pipeline.trainer import Trainer

from .calling import arguments, small, tether

RUN = small("eval.prompts=0", "run.steps=5", "checkpoint.every=2")


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory) -> Path:
    """A run stopped by Ctrl-C in its third step."""
    out = tmp_path_factory.mktemp("cli") / "run"
    step = Trainer.step

    def asked(self, batch, *rest):
        if self.updates == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self, batch, *rest)

    with pytest.MonkeyPatch.context() as patch, arguments("train", *RUN, "--out", out):
        patch.setattr(Trainer, "step", asked)
        with pytest.raises(SystemExit) as stop:
            app.main()
    assert stop.value.code == 130
    return out


@pytest.fixture
def stopped(tmp_path, stopped_once) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "run"))


def test_a_stopped_run_says_how_to_go_on_and_goes_on(capsys, stopped):
    told = tether(capsys, "train", "--resume", stopped)
    assert told.code == 0
    assert told.out.splitlines()[0] == f"{stopped} goes on after step 3; what came later goes to rolled-back/"
    assert [line.split()[1] for line in told.out.splitlines() if line.startswith("step ")] == ["4", "5"]
    assert RunView(stopped).status == "finished"
    again = tether(capsys, "train", "--resume", stopped)
    assert (again.code, again.out) == (0, f"{stopped} is finished: all 5 steps are done; set run.steps for more\n")


def test_the_stop_is_announced_with_the_command_that_goes_on(capsys, tmp_path, monkeypatch):
    step = Trainer.step

    def asked(self, batch, *rest):
        signal.raise_signal(signal.SIGINT)
        return step(self, batch, *rest)

    monkeypatch.setattr(Trainer, "step", asked)
    told = tether(capsys, "train", *RUN, "--out", tmp_path / "run")
    assert told.code == 130
    assert "Ctrl-C: the run stops after the step under way and saves it; once more stops it now" in told.err
    assert f"to go on after step 1: tether train --resume {tmp_path / 'run'}" in told.out.replace("\n", "")


def test_without_a_checkpoint_the_run_starts_over_and_says_so(capsys, stopped):
    shutil.rmtree(stopped / "checkpoints")
    told = tether(capsys, "train", "--resume", stopped)
    assert told.code == 0
    assert f"{stopped} has no checkpoint yet: it starts over" in told.out
    assert [event.step for event in RunView(stopped).steps] == [1, 2, 3, 4, 5]


def test_a_corrupt_checkpoint_is_named(capsys, stopped):
    (stopped / "checkpoints/step-000003/model.safetensors").write_bytes(b"")
    told = tether(capsys, "train", "--resume", stopped, "--dry-run")
    assert "step-000003 is skipped: model.safetensors is not the file that was written" in told.out
    assert f"{stopped} goes on after step 2" in told.out


def test_a_changed_setting_is_shown_and_a_dry_run_touches_nothing(capsys, stopped):
    before = {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
    told = tether(capsys, "train", "--resume", stopped, "--set", "trainer.lr=1e-5", "--dry-run")
    assert told.code == 0
    assert "changed: trainer.lr: 0.0001 -> 1e-05" in told.out
    assert "nothing was touched (--dry-run)" in told.out
    assert "lr = 1e-05" in told.out
    assert {path: path.stat().st_mtime_ns for path in stopped.rglob("*")} == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--set", "run.seed=7"), "a run cannot go on with other settings of this kind: run.seed: 0 -> 7"),
        (("--set", "placement.kind=ray"), "other settings of this kind: placement.kind: "),
        (("--out", "elsewhere"), "--resume goes on in the folder of the run; leave out --out"),
    ],
)
def test_what_would_break_the_run_is_one_message(capsys, stopped, words, message):
    told = tether(capsys, "train", "--resume", stopped, *words)
    assert told.code != 0
    assert message in told.err
    assert "Traceback" not in told.err
    assert not (stopped / "rolled-back").exists()


def test_a_folder_that_is_no_run_is_one_message(capsys, tmp_path):
    told = tether(capsys, "train", "--resume", tmp_path)
    assert told.code == 1
    assert "is not a run directory" in told.err
