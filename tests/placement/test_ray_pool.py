"""Whole runs of several engines, a learner and reward workers, a process each, in every regime."""

from pathlib import Path

import pytest

pytest.importorskip("ray")

from tests.e2e.quick import assert_books_balance
from tether.config.build import go_on, train
from tether.config.resume import plan
from tether.errors import ProcessLostError
from tether.journal import RunView

from .test_ray_run import assert_nobody_is_left, is_saved, killing, pid_of, processes, recipe_of

POOL = ("placement.engines=2", "placement.reward_workers=2")
FULLY = ("pipeline.regime=fully-async", "pipeline.lag=1", "pipeline.max_staleness=3", "pipeline.window=1")
EVERYBODY = {"learner", "engine-0", "engine-1", "reward-0", "reward-1", "controller"}


def assert_whole(folder: Path, *, groups: int = 12) -> RunView:
    run = RunView(folder)
    assert run.status == "finished"
    assert_books_balance(run, groups=groups, size=4, admitted_only=True)
    assert run.balance()["trained"] == groups * 4
    bound = run.config["derived"]["staleness_bound"]
    assert max(event.metrics["staleness/max"].value for event in run.steps) <= bound
    assert {facts["role"] for facts in processes(folder)} == EVERYBODY
    assert_nobody_is_left(folder)
    return run


def warnings(run: RunView) -> list[str]:
    return [event.note for event in run.events if event.event == "warn"]


@pytest.mark.long
def test_engines_and_reward_workers_that_are_killed_are_started_anew_and_nothing_is_lost(ray_here, tmp_path):
    folder = tmp_path / "run"
    kills = (killing(folder, "engine-1", 2), killing(folder, "reward-0", 2), killing(folder, "reward-1", 4))
    train(recipe_of(*POOL, *FULLY, "run.steps=8", "checks.prompts=2"), folder, observers=kills)
    run = assert_whole(folder, groups=16)
    assert sum("engine-1" in text and "is started anew" in text for text in warnings(run)) == 1
    assert 1 <= sum("reward-" in text and "is started anew" in text for text in warnings(run)) <= 2
    assert pid_of(folder, "engine-1") != next(f["pid"] for f in processes(folder) if f["role"] == "engine-1")


@pytest.mark.long
@pytest.mark.parametrize(
    "regime",
    [("pipeline.regime=sync", "pipeline.lag=1"), ()]
    + [(*FULLY, f"pipeline.in_flight={policy}") for policy in ("keep", "recompute", "restart", "finish")],
    ids=lambda settings: settings[-1].rpartition("=")[2] if settings else "batch-async",
)
def test_every_regime_trains_with_a_pool_within_its_bound(ray_here, tmp_path, regime):
    folder = tmp_path / "run"
    train(recipe_of(*POOL, *regime, "engine.yield_every=2"), folder)
    run = assert_whole(folder)
    assert not [text for text in warnings(run) if "started anew" in text]
    assert all(line.fate == "trained" for line in run.ledger if int(line.group[1:]) < 12)


@pytest.mark.long
def test_old_log_probs_come_from_an_evaluator_of_its_own(ray_here, tmp_path):
    folder = tmp_path / "run"
    train(recipe_of("old.strategy=evaluator", *FULLY), folder, observers=(killing(folder, "evaluator", 2),))
    run = RunView(folder)
    assert (run.status, run.balance()["trained"]) == ("finished", 48)
    assert any("evaluator" in text and "is started anew" in text for text in warnings(run))
    assert_nobody_is_left(folder)


@pytest.mark.long
def test_weights_travel_through_a_folder(ray_here, tmp_path):
    folder = tmp_path / "run"
    train(recipe_of(*POOL, *FULLY, "placement.weights=directory", f"placement.weights_folder={tmp_path}/w"), folder)
    assert_whole(folder)
    assert len([path for path in (tmp_path / "w" / "engines").iterdir() if path.name.startswith("v")]) == 2


@pytest.mark.long
def test_a_learner_that_is_killed_beside_a_pool_stops_the_run_which_then_goes_on(ray_here, tmp_path):
    folder = tmp_path / "run"
    recipe = recipe_of(*POOL, *FULLY, "checkpoint.every=2", "run.steps=40")
    dying = killing(folder, "learner", 3, lambda: is_saved(folder))
    with pytest.raises(ProcessLostError, match=r"learner \(pid \d+, .* go on with tether train --resume"):
        train(recipe, folder, observers=(dying,))
    assert RunView(folder).status == "failed"
    assert_nobody_is_left(folder)
    planned = plan(folder, None, (), told=print)
    assert planned.checkpoint is not None
    go_on(planned)
    assert_whole(folder, groups=80)
