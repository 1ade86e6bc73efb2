import os
import stat
from pathlib import Path

import pytest
import torch

from tether.cli import console
from tether.errors import RunDirectoryError
from tether.journal import RunView
from tether.records import Prompt

from .calling import small, tether


def broken_reward(prompt: Prompt, response: str) -> float:
    raise LookupError("the judge is away")


def test_a_run_prints_its_bound_first_and_what_it_learned_last(capsys, tmp_path):
    told = tether(capsys, "train", *small("run.steps=3", "eval.prompts=8"), "--out", tmp_path / "run")
    assert (told.code, "Traceback" in told.err) == (0, False)
    lines = told.out.splitlines()
    assert lines[0] == "tether: recipe quickstart, model tiny-moe, task arithmetic"
    assert "no token will be staler than 3 optimizer updates when it is trained on" in told.out
    assert [line.split()[1] for line in lines if line.startswith("step")] == ["0", "1", "2", "3", "3"]
    for row in ("held-out accuracy", "gain", "newly cut by SAT", "trained 24", "run directory"):
        assert row in told.out
    assert RunView(tmp_path / "run").status == "finished"
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["model.path=no-such-model"], "no model 'no-such-model': embedded are tiny-moe, "),
        (["engine.max_tokens=100000"], "of the model's context to the prompt"),
        (["run.device=cuda:99"], "run.device 'cuda:99' is not usable"),
        (["task.reward=no_such_module:f"], "module 'no_such_module' cannot be imported"),
        (["task.reward=os:no_such"], "module 'os' has no 'no_such'"),
        (["task.reward=exakt"], "no reward 'exakt'; there are boxed, cosine, exact"),
        (["pipeline.group_size=1"], "leaves every group without a baseline"),
        (["trainer.learning_rate=1"], "unknown key trainer.learning_rate; [trainer] has lr"),
        (["pipeline.lag=0"], "pipeline.lag must be at least 1"),
        (["run.steps"], "--set takes key=value"),
    ],
)
def test_bad_input_is_one_message_before_any_work_and_leaves_no_folder(capsys, tmp_path, settings, message):
    told = tether(capsys, "train", *small(*settings), "--out", tmp_path / "run")
    assert told.code == 1
    assert told.err.startswith("error: ")
    assert message in told.err
    assert "Traceback" not in told.err
    assert not (tmp_path / "run").exists()


def test_a_prompt_longer_than_the_context_leaves_is_refused_before_the_run(capsys, tmp_path):
    told = tether(
        capsys, "train", *small("task.min_operations=300", "task.max_operations=300"), "--out", tmp_path / "run"
    )
    assert told.code == 1
    assert "lower engine.max_tokens, make the prompts shorter, or use a model with a longer context" in told.err
    assert not (tmp_path / "run").exists()


def test_a_folder_without_a_model_is_refused(capsys, tmp_path):
    told = tether(capsys, "train", *small(f"model.path={tmp_path}"), "--out", tmp_path / "run")
    assert told.code == 1
    assert "a model folder holds config.json" in told.err


def test_a_used_run_directory_is_refused_and_left_alone(capsys, tmp_path):
    out = tmp_path / "run"
    assert tether(capsys, "train", *small("run.steps=1", "eval.prompts=0"), "--out", out).code == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    told = tether(capsys, "train", *small("run.steps=1", "eval.prompts=0"), "--out", out)
    assert told.code == 1
    assert "holds a run already: choose another with --out" in told.err
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_run_directory_that_cannot_be_made_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    told = tether(capsys, "train", *small(), "--out", tmp_path / "file" / "run")
    assert told.code == 1
    assert "cannot make the run directory" in told.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_run_directory_that_cannot_be_written_is_refused(capsys, tmp_path):
    (tmp_path / "locked").mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    told = tether(capsys, "train", *small(), "--out", tmp_path / "locked" / "run")
    assert told.code == 1
    assert "cannot make the run directory" in told.err


BROKEN = (f"task.reward={__name__}:broken_reward", "faults.most_failed=3")


def test_a_reward_that_raises_gives_exit_code_1_one_message_and_a_readable_run(capsys, tmp_path):
    out = tmp_path / "run"
    told = tether(capsys, "train", *small(*BROKEN, "eval.prompts=0"), "--out", out)
    assert told.code == 1
    assert told.err.count("error: ") == 1
    assert "LookupError: the judge is away" in told.err
    assert "Traceback" not in told.err
    assert f"run directory {out} is kept" in told.out.replace("\n", "")
    run = RunView(out)
    assert run.balance()["failed:reward"] >= 3
    assert run.last("fail") is not None
    assert (out / "report.html").is_file()


def test_a_report_that_cannot_be_written_does_not_hide_what_stopped_the_run(capsys, tmp_path, monkeypatch):
    def full(folder):
        raise RunDirectoryError("no space left")

    monkeypatch.setattr("tether.report.page.write_report", full)
    settings = small(*BROKEN, "eval.prompts=0")
    told = tether(capsys, "train", *settings, "--out", tmp_path / "run")
    assert "the judge is away" in told.err
    assert "no space left" not in told.err


def test_an_interrupted_run_gives_exit_code_130_and_says_where_it_is(capsys, tmp_path, monkeypatch):
    def interrupted(self, *_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tether.pipeline.trainer.Trainer.step", interrupted)
    told = tether(capsys, "train", *small("eval.prompts=0"), "--out", tmp_path / "run")
    assert told.code == 130
    assert "is kept" in told.out
    assert RunView(tmp_path / "run").status == "failed"


def test_weights_that_are_not_numbers_give_exit_code_1_and_name_the_file(capsys, tmp_path, monkeypatch):
    from tether.pipeline.trainer import Trainer

    step = Trainer.step

    def poisoned(self, batch, *rest):
        if self.updates == 2:
            with torch.no_grad():
                next(self.policy.model.parameters())[:] = float("nan")
        return step(self, batch, *rest)

    monkeypatch.setattr(Trainer, "step", poisoned)
    told = tether(capsys, "train", *small("eval.prompts=0"), "--out", tmp_path / "run")
    assert told.code == 1
    assert "logp of the trainer is nan at token" in told.err
    assert "nonfinite-batch.pt" in told.err
    assert (tmp_path / "run" / "nonfinite-batch.pt").is_file()


def test_a_dry_run_makes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = tether(capsys, "train", "--dry-run")
    assert told.code == 0
    assert "# no token will be staler than 15 optimizer updates" in told.out
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_out_is_named_after_recipe_and_time(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tether(capsys, "train", *small("run.steps=1", "eval.prompts=0")).code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("quickstart-20")


def test_a_long_run_prints_about_forty_step_lines(capsys, tmp_path):
    assert tether(capsys, "train", *small("run.steps=1", "eval.prompts=0"), "--out", tmp_path / "run").code == 0
    event = RunView(tmp_path / "run").steps[0]
    resolved = {**RunView(tmp_path / "run").config, "run": {"steps": 600}}
    with console.TrainingConsole(resolved, tmp_path) as shown:
        for number in range(1, 601):
            shown.on_event(type(event)(event="step", step=number, version=number, metrics=event.metrics))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert 20 <= len(lines) <= console.LINES + 2
