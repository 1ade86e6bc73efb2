"""Ctrl-C: the first finishes the step and saves, the second stops now, a third changes nothing."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.journal import RunView

from .quick import journal
from .stopping import CASES
from .test_kill import BASE, STREAMING

pytestmark = pytest.mark.long  # the default tier stops runs in test_train and test_resume
SETTINGS = (*BASE, *STREAMING, "pipeline.window=2")
NOTICE = "Ctrl-C: the run stops after the step under way and saves it; once more stops it now"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A run for every case, each stopped, and what the process said."""
    home = tmp_path_factory.mktemp("stopped")
    command = [sys.executable, "-X", "dev", "-W", "error", "-m", "tests.e2e.stopping", str(home), *SETTINGS]
    root = Path(__file__).parents[2]
    return home, subprocess.run(command, capture_output=True, text=True, timeout=400, cwd=root, check=False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return train(load(settings=SETTINGS), tmp_path_factory.mktemp("whole") / "run")


def test_nothing_is_left_of_a_stopped_run_but_its_notice(stopped):
    _, process = stopped
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [f"stopped: {case}" for case in CASES]
    assert [line for line in process.stderr.splitlines() if line] == [NOTICE] * len(CASES)


@pytest.mark.parametrize("case", CASES)
def test_the_books_of_a_stopped_run_are_closed(stopped, case):
    home, _ = stopped
    run, (_, count) = RunView(home / case), CASES[case]
    assert run.last("fail").note == "interrupted"
    assert run.last("fail").metrics["ledger/balance"].value == run.balance()
    fates = {line.fate: line for line in run.ledger}
    assert set(fates) <= {"trained", "unused", "in-flight"}
    assert all((line.fate == "in-flight") == (line.finished_s is None) for line in run.ledger)
    ids = [line.id for line in run.ledger]
    assert len(ids) == len(set(ids))
    assert "in-flight" in fates
    checkpoint = plan(home / case, None, (), told=pytest.fail).checkpoint
    if count == 1:
        assert checkpoint.step == run.steps[-1].step
    elif case != "two in a checkpoint":
        assert (checkpoint.step if checkpoint else 0) <= (run.steps[-1].step if run.steps else 0)


@pytest.mark.parametrize("case", CASES)
def test_a_stopped_run_goes_on_as_if_it_had_not_been_stopped(stopped, whole, case, tmp_path):
    home, _ = stopped
    out = Path(shutil.copytree(home / case, tmp_path / "run"))
    go_on(plan(out, None, (), told=pytest.fail))
    assert journal(out) == journal(whole)
    assert (out / "spans.jsonl").read_bytes() == (whole / "spans.jsonl").read_bytes()
    assert (out / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
