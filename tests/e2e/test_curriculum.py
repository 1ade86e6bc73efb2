"""A run with a curriculum on problems that come again: it is told of, and goes on as if it had never stopped."""

import signal
from dataclasses import replace

import pytest

from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.errors import ConfigError
from tether.journal import RunView
from tether.tasks.arithmetic import Arithmetic

from .quick import SMALL, assert_books_balance, journal

POOL = 5
SETTINGS = (
    *(*SMALL, "run.steps=7", "eval.prompts=0", "checks.prompts=0", "engine.yield_every=3"),
    *("pipeline.regime=fully-async", "pipeline.lag=1", "pipeline.max_staleness=3", "pipeline.window=2"),
    *("curriculum.retire_above=0.75", "curriculum.retire_below=0.0", "curriculum.least_groups=0.5"),
    *("curriculum.rest=3", "curriculum.half_life=4.0", "curriculum.order=medium-first", "curriculum.choices=2"),
)


@pytest.fixture
def _few_problems(monkeypatch) -> None:
    """The quickstart's task asks few problems, each with a key, again and again."""
    problem = Arithmetic.problem

    def again(self, split, seed, index):
        made = problem(self, split, seed, index % POOL)
        return replace(made, key=made.text, pass_rate=0.1 * (index % POOL))

    monkeypatch.setattr(Arithmetic, "problem", again)


@pytest.mark.usefixtures("_few_problems")
def test_a_stopped_run_with_a_curriculum_ends_as_one_that_never_stopped_and_tells_what_it_skipped(tmp_path):
    def observe(event) -> None:
        if event.event == "step" and event.step == 4:
            signal.raise_signal(signal.SIGINT)

    recipe = load(settings=SETTINGS)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    train(recipe, whole)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, stopped, (observe,))
    go_on(plan(stopped, None, (), told=lambda message: None))
    assert journal(stopped) == journal(whole)
    run = RunView(whole)
    assert_books_balance(run, groups=len({line.id.partition("/")[0] for line in run.ledger}), size=4)
    told = [event.metrics for event in run.steps]
    assert sum(m["curriculum/skipped_easy"].value + m["curriculum/skipped_hard"].value for m in told) > 0
    assert 0 < told[-1]["curriculum/known"].value <= POOL
    assert "Pass rates" in (whole / "report.html").read_text()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("curriculum.retire_above=1.0",), r"the first 12 of task 'arithmetic' have none"),
        (("curriculum.order=easy-first",), r"the first 12 of task 'arithmetic' have none"),
        (
            ("curriculum.least=0.1",),
            r"curriculum\.least and most go by the pass rates that the data name; the first",
        ),
    ],
)
def test_a_curriculum_that_has_nothing_to_go_by_is_refused_before_the_run(tmp_path, settings, says):
    with pytest.raises(ConfigError, match=says):
        train(load(settings=(*SMALL, *settings)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_curriculum_that_is_off_changes_nothing(tmp_path):
    settings = (*SMALL, "run.steps=3", "eval.prompts=0", "checks.prompts=0")
    train(load(settings=settings), tmp_path / "plain")
    train(load(settings=(*settings, "curriculum.half_life=9.0")), tmp_path / "off")
    plain, off = journal(tmp_path / "plain"), journal(tmp_path / "off")
    assert {**plain, "config.json": b""} == {**off, "config.json": b""}
    assert not [name for event in RunView(tmp_path / "off").steps for name in event.metrics if "curriculum" in name]
