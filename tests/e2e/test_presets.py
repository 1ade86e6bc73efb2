"""Every preset trains, or is refused with the sentence that says what is missing."""

from __future__ import annotations

import math

import pytest

from tests.presets import NEEDED, RUNNING, WAITING
from tether.config.build import train
from tether.config.recipe import load
from tether.errors import ConfigError
from tether.journal.reader import RunView

STEPS = 3
SMALL = [
    f"run.steps={STEPS}",
    "run.samples=0",
    "pipeline.lag=2",
    "pipeline.prompts_per_step=2",
    "pipeline.group_size=8",
    "engine.max_tokens=8",
    "trainer.warmup=0",
    "trainer.token_budget=512",
    "eval.prompts=1",
    "checks.prompts=1",
    "checks.tokens=1",
]


@pytest.mark.parametrize("name", WAITING)
def test_a_preset_whose_inputs_nobody_provides_is_refused_with_what_is_missing(name):
    with pytest.raises(ConfigError, match=WAITING[name]):
        load("quickstart", [f"algorithm.preset={name}"])


@pytest.mark.long
@pytest.mark.parametrize("name", RUNNING)
def test_a_preset_trains_the_quickstart_for_three_steps(name, tmp_path):
    recipe = load("quickstart", [*SMALL, *NEEDED.get(name, []), f"algorithm.preset={name}"])
    folder, each = train(recipe, tmp_path / "run"), recipe.pipeline.updates_per_batch
    steps = [event for event in RunView(folder).events if event.event == "step"]
    assert [event.version for event in steps] == [each, 2 * each, 3 * each]
    for event in steps:
        loss, norm = event.metrics["policy/loss"].value, event.metrics["policy/grad_norm"].value
        assert math.isfinite(loss)
        assert norm > 0 or event.metrics["reward/flat_groups_fraction"].value == 1.0
