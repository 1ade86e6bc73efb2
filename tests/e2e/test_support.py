"""Truncated sampling and its replay in live runs: trained, interrupted, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.journal.reader import RunView

from .killing import Killer
from .quick import SMALL as QUICK
from .quick import journal
from .test_presets import SMALL

TOP_P = ("engine.top_p=0.9", "algorithm.replay=[{name='support'}]")
FULLY = (
    "pipeline.regime=fully-async",
    "pipeline.lag=1",
    "pipeline.max_staleness=3",
    "run.steps=4",
    "trainer.lr=3e-3",
    "engine.dtype=float32",
    "placement.costs.generate_token_s=0.1",
    "engine.yield_every=2",
)
FLOOR = 2e-4
"""Nats between engine and trainer at equal weights, both in float32."""


def steps(folder: Path) -> list[dict[str, Any]]:
    events = [event for event in RunView(folder).events if event.event == "step"]
    return [{name: metric.value for name, metric in event.metrics.items()} for event in events]


@pytest.mark.parametrize(
    "way", ["keep", *(pytest.param(way, marks=pytest.mark.long) for way in ("finish", "recompute", "restart"))]
)
def test_truncated_rollouts_are_the_trainers_own_at_the_weights_that_sampled_them(way: str, tmp_path: Path) -> None:
    """Whatever happens to completions under way, and whichever policy stands in the ratio."""
    settings = ("algorithm.preset=grpo-old", *SMALL, *FULLY, *TOP_P, "old.strategy=snapshots")
    told = steps(train(load("quickstart", [*settings, f"pipeline.in_flight={way}"]), tmp_path / "run"))
    assert len(told) == 4
    assert max(step["mismatch/policy_max"] for step in told) > 10 * FLOOR
    for step in told:
        assert step["replay/unsupported_fraction"] == 0.0
        assert step.get("mismatch/engine_max", 0.0) < FLOOR
        assert "mismatch/lost_mass_mean" not in step


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["interruption", "evaluator"])
def test_other_ways_to_old_log_probs_take_the_sets_too(strategy: str, tmp_path: Path) -> None:
    settings = ("algorithm.preset=grpo-old", *SMALL, *FULLY, *TOP_P, f"old.strategy={strategy}")
    told = steps(train(load("quickstart", list(settings)), tmp_path / "run"))
    assert max(step.get("mismatch/engine_max", 0.0) for step in told) < FLOOR


def test_the_first_ratios_are_one_with_the_replay_and_off_by_the_lost_mass_without(tmp_path: Path) -> None:
    settings = [*SMALL, "engine.dtype=float32", "run.steps=2"]
    replayed = steps(train(load("quickstart", [*settings, *TOP_P]), tmp_path / "replayed"))
    assert replayed[0]["mismatch/max"] < FLOOR
    mismatch = ["engine.top_p=0.9", "trainer.allow_support_mismatch=true"]
    without = steps(train(load("quickstart", [*settings, *mismatch]), tmp_path / "without"))
    assert without[0]["mismatch/max"] > 0.03
    # |d| is log(1 / (1 - lost)), which is about the lost mass where that is small
    lost = without[0]["mismatch/lost_mass_mean"]
    assert lost <= without[0]["mismatch/abs_mean"] <= 1.2 * lost
    assert 0 < without[0]["mismatch/lost_mass_max"] <= 0.1 + 1e-6
    assert "Mass lost to truncation" in (tmp_path / "without/report.html").read_text("utf-8")
    assert "Mass lost to truncation" not in (tmp_path / "replayed/report.html").read_text("utf-8")


@pytest.mark.long
@pytest.mark.parametrize("way", ["keep", "restart"])
def test_a_run_killed_with_kept_sets_in_flight_ends_as_the_run_that_never_died(way: str, tmp_path: Path) -> None:
    settings = (*QUICK, *FULLY, *TOP_P, f"pipeline.in_flight={way}", "checkpoint.every=1", "run.steps=4")
    killer = Killer()
    assert killer.run(tmp_path / "whole", settings, report=tmp_path / "calls") == 0
    num_calls = int((tmp_path / "calls").read_text())
    killer.run(tmp_path / "run", settings, last=int(num_calls * 0.7))
    assert RunView(tmp_path / "run").status != "finished"
    go_on(plan(tmp_path / "run", None, (), told=lambda message: None))
    assert journal(tmp_path / "run") == journal(tmp_path / "whole")
    one, other = ((tmp_path / name / "model/model.safetensors").read_bytes() for name in ("run", "whole"))
    assert one == other
