"""Every embedded model learns its task under the settings of the recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_quickstart import tether
from tether.journal.reader import RunView

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(
    ("recipe", "model"),
    [("quickstart", "tiny-dense"), ("sorting", "tiny-moe-sorting"), ("sorting", "tiny-dense-sorting")],
)
def test_a_hundred_steps_of_its_recipe_are_a_gain(tmp_path: Path, recipe: str, model: str) -> None:
    settings = (f"model.path={model}", "algorithm.preset=sat-gspo", "run.steps=100", "eval.prompts=512")
    tether("train", recipe, "--out", str(tmp_path / "run"), *(part for each in settings for part in ("--set", each)))
    finish = RunView(tmp_path / "run").last("finish")
    assert finish is not None
    assert float(finish.metrics["eval/accuracy_gain_low"].value) > 0.05  # measured after 100 steps: 0.2 to 0.4
