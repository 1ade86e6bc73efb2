"""The self-test, on a real run, and on runs in which something is wrong."""

import json
import shutil
from dataclasses import replace

import pytest

from tether.config.build import train
from tether.config.recipe import load
from tether.errors import TetherError
from tether.journal import RunView
from tether.machine import trial
from tether.machine.surroundings import Surroundings

from .places import named

SMALL = (*trial.SETTINGS, "pipeline.prompts_per_step=4", "pipeline.group_size=4", "run.device=cpu")


@pytest.fixture(scope="module")
def recipe():
    return load("quickstart", SMALL)


@pytest.fixture(scope="module")
def run(recipe, tmp_path_factory):
    return train(recipe, tmp_path_factory.mktemp("trial") / "run")


@pytest.fixture
def copy(run, tmp_path):
    """The run, to do harm to."""
    return shutil.copytree(run, tmp_path / "run")


def edit(folder, name, change):
    """Every event of a run, changed."""
    lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
    for line in lines:
        change(line)
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_sound_run_passes_every_check_and_gives_its_speed(run, recipe):
    found = list(trial.judge(RunView(run), recipe))
    assert [f.name for f in found if f.status != "ok"] == []
    names = ["log-probs", "ratio", "loss", "weights", "staleness", "ledger", "engine", "trainer"]
    assert [f.name for f in found] == names
    assert "tokens/s in float32" in named(found, "engine").value
    assert named(found, "trainer").value.endswith("s a step of 16 rollouts")


@pytest.mark.parametrize(
    ("metric", "value", "failed"),
    [
        ("mismatch/abs_mean", 3e-3, "log-probs"),
        ("mismatch/abs_mean", None, "log-probs"),
        ("mismatch/tv", 1e-3, "ratio"),
        ("policy/loss", None, "loss"),
        ("staleness/max", 9.0, "staleness"),
    ],
)
def test_a_step_that_is_not_right_fails_its_check(copy, recipe, metric, value, failed):
    def change(line):
        if line["event"] == "step" and (metric != "staleness/max" or line["step"] == 6):
            line["metrics"].pop(metric, None)
            if value is not None:
                line["metrics"][metric] = value

    edit(copy, "events.jsonl", change)
    assert [f.name for f in trial.judge(RunView(copy), recipe) if f.status != "ok"] == [failed]


def test_an_engine_in_another_number_format_is_caught(tmp_path):
    recipe = load("quickstart", (*SMALL, "engine.dtype=bfloat16"))
    found = list(trial.judge(RunView(train(recipe, tmp_path / "run")), recipe))
    assert [f.name for f in found if f.status == "fail"] == ["log-probs", "ratio"]


def test_a_run_without_a_fresh_batch_is_no_proof(copy, recipe):
    edit(copy, "events.jsonl", lambda line: line["metrics"].pop("staleness/max", None))
    assert named(trial.judge(RunView(copy), recipe), "log-probs").status == "fail"


def test_weights_that_did_not_change_fail(copy, recipe):
    source = trial.resolve_source("tiny-moe")
    shutil.copy(f"{source}/model.safetensors", copy / "model/model.safetensors")
    assert named(trial.judge(RunView(copy), recipe), "weights").status == "fail"
    shutil.rmtree(copy / "model")
    assert named(trial.judge(RunView(copy), recipe), "weights").value == "no model was saved at the end"


def test_a_rollout_that_is_missing_from_the_ledger_fails(copy, recipe):
    lines = (copy / "ledger.jsonl").read_text().splitlines(keepends=True)
    (copy / "ledger.jsonl").write_text("".join(lines[1:]))
    finding = named(trial.judge(RunView(copy), recipe), "ledger")
    assert (finding.status, finding.value) == ("fail", "96 rollouts were to be trained; it has 95 trained")


def test_what_stops_the_training_is_a_finding(monkeypatch):
    for error, value in (
        (TetherError("the rule, the way out"), "the rule, the way out"),
        (KeyError("x"), "KeyError: 'x'"),
    ):

        def stop(recipe, folder, error=error):
            raise error

        monkeypatch.setattr(trial, "train", stop)
        (finding,) = trial.look(Surroundings())
        assert (finding.status, finding.value) == ("fail", value)


def test_the_self_test_leaves_nothing_behind(tmp_path, monkeypatch, run):
    monkeypatch.setattr(trial, "train", lambda recipe, folder: run)
    found = list(trial.look(replace(Surroundings(), temp=lambda: str(tmp_path))))
    assert found[0].value.startswith("6 quickstart steps in ")
    assert list(tmp_path.iterdir()) == []
