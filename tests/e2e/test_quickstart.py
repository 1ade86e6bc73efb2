"""The whole quickstart, as a user runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tether.evals.estimators import proportion
from tether.journal.reader import RunView

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


def tether(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tether.cli.app", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("quickstart") / "run"
    tether("train", "--out", str(folder))
    return folder


def test_quickstart_learns_with_its_paired_interval_above_zero(run: Path) -> None:
    finish = RunView(run).last("finish")
    assert finish is not None
    gain, low = finish.metrics["eval/accuracy_gain"], finish.metrics["eval/accuracy_gain_low"]
    assert gain.count >= 1024
    assert float(low.value) > 0.3  # measured: 0.63; half of it is still far above any accident


def test_exported_model_is_better_than_the_embedded_one_when_evaluated_apart(run: Path) -> None:
    exported = run.parent / "exported"
    tether("export", str(run), "--out", str(exported))
    shared = ("--task", "arithmetic", "--n", "1024", "--seed", "7", "--json")
    before, after = (json.loads(tether("eval", model, *shared)) for model in ("tiny-moe", str(exported)))
    assert proportion(round(before["accuracy"] * 1024), 1024).high < after["accuracy_low"]


def test_staleness_is_0_to_7_in_the_first_block_and_8_to_15_after_it(run: Path) -> None:
    stale = [int(event.metrics["staleness/max"].value) for event in RunView(run).steps]
    assert stale[:8] == list(range(8))
    assert stale[8:] == [8 + i % 8 for i in range(len(stale) - 8)]


def test_sat_newly_cuts_tokens_in_some_steps_and_its_radius_never_exceeds_ppos(run: Path) -> None:
    view = RunView(run)
    cut = np.array(view.series("sat/newly_cut_fraction")[1])
    assert 0.05 < (cut > 0).mean() < 0.95
    for end in ("low", "high"):
        assert max(view.series(f"sat/effective_radius_{end}")[1]) <= 0.2 + 1e-12


def test_every_rollout_was_trained_once(run: Path) -> None:
    lines = RunView(run).ledger
    assert len({line.id for line in lines}) == len(lines) == 400 * 64
    assert {line.fate for line in lines} == {"trained"}


@pytest.mark.parametrize("settings", [("pipeline.regime=sync", "pipeline.lag=1"), ("pipeline.lag=1",)], ids=str)
def test_less_stale_regimes_learn_too(tmp_path: Path, settings: tuple[str, ...]) -> None:
    arguments = [part for setting in (*settings, "run.steps=120") for part in ("--set", setting)]
    tether("train", "--out", str(tmp_path / "run"), *arguments)
    view = RunView(tmp_path / "run")
    finish = view.last("finish")
    assert finish is not None
    assert float(finish.metrics["eval/accuracy_gain_low"].value) > 0
    bound = 0 if "pipeline.regime=sync" in settings else 1
    assert max(view.series("staleness/max")[1]) == bound


def test_warm_up_gives_a_model_that_errs_often_and_knows_the_form(tmp_path: Path) -> None:
    tether("warmup", "--out", str(tmp_path / "model"))
    sampled = json.loads(tether("eval", str(tmp_path / "model"), "--n", "2048", "--json"))
    greedy = json.loads(tether("eval", str(tmp_path / "model"), "--n", "1024", "--temperature", "0", "--json"))
    assert 0.10 <= sampled["accuracy"] <= 0.40
    assert greedy["accuracy"] <= 0.45
    assert sampled["truncated_fraction"] < 0.02
