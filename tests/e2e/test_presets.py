"""Every preset trains, or is refused with the sentence that says what is missing."""

from __future__ import annotations

import math

import pytest

from tether.config.build import train
from tether.config.presets import PRESETS
from tether.config.recipe import load
from tether.errors import ConfigError
from tether.journal.reader import RunView

OLD = "needs old log-probs, the trainer's own at the weights that sampled each token"
TOP_K = "needs the log-probs of the engine's most probable tokens"
WAITING = {
    "icepop-old": OLD,
    "grpo-old": OLD,
    "dppo-top-k": TOP_K,
    "dppo-top-k-kl": TOP_K,
    "sat-turn": "needs turns of tool use",
    "estr": "threshold of estr must be given",
}
"""Presets whose inputs no part of a run provides, and what they are told; whatever provides them takes them out."""
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


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in WAITING])
def test_a_preset_trains_the_quickstart_for_three_steps(name, tmp_path):
    folder = train(load("quickstart", [*SMALL, f"algorithm.preset={name}"]), tmp_path / "run")
    steps = [event for event in RunView(folder).events if event.event == "step"]
    assert [event.version for event in steps] == [1, 2, 3]
    for event in steps:
        loss, norm = event.metrics["policy/loss"].value, event.metrics["policy/grad_norm"].value
        assert math.isfinite(loss)
        assert norm > 0 or event.metrics["reward/flat_groups_fraction"].value == 1.0
