"""Runs on problems of files: what they ask, and that they go on with the very next problem."""

import signal
from pathlib import Path

import pytest

from tests.data.files import write
from tether.config.build import check, go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.errors import DataError, ResumeError
from tether.journal import RunView
from tether.tasks.arithmetic import Arithmetic

from .quick import SMALL, assert_books_balance, journal

CHAINS = Arithmetic(max_operations=5)


def chains(count: int, start: int = 0) -> list[dict]:
    """Problems that the embedded model knows how to solve."""
    problems = [CHAINS.problem("train", 5, index) for index in range(start, start + count)]
    return [{"problem": problem.text, "answer": problem.reference} for problem in problems]


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> tuple[str, ...]:
    """Two files, so few problems that six steps of two prompts go through the smaller one more than once."""
    home = tmp_path_factory.mktemp("data")
    few, many = write(home / "few.jsonl", chains(3)), write(home / "many.parquet", chains(60, start=3))
    rest = write(home / "rest.jsonl", chains(16, start=200))
    sources = f'task.sources=[{{path="{few}", weight=1.0}}, {{path="{many}", weight=2.0}}]'
    return (
        *SMALL,
        *("task.name=dataset", sources, f"task.heldout.path={rest}", "task.chat=false", "task.reward=exact"),
        "checkpoint.every=2",
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory, settings) -> Path:
    """A run that nobody disturbed."""
    return train(load(settings=settings), tmp_path_factory.mktemp("whole") / "run")


def stop_at(out: Path, step: int, settings: tuple[str, ...]) -> None:
    def observe(event) -> None:
        if event.event == "step" and event.step == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(load(settings=settings), out, (observe,))


def test_a_run_on_files_tells_what_it_noticed_and_asks_in_the_shares_of_the_weights(whole):
    run = RunView(whole)
    assert_books_balance(run, groups=12, size=4)
    warnings = [event.note for event in run.events if event.event == "warn"]
    assert sum("few.jsonl has only 3 rows" in note for note in warnings) == 1
    assert run.config["task"]["sources"][0]["weight"] == 1.0
    assert run.config["derived"]["data"]


def test_a_run_on_files_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, whole, settings):
    out = tmp_path / "run"
    stop_at(out, 3, settings)
    go_on(plan(out, None, (), told=pytest.fail))
    assert journal(out) == journal(whole)
    assert (out / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()


def test_a_run_does_not_go_on_with_other_data(tmp_path, settings):
    path = write(tmp_path / "mine.jsonl", chains(150))
    mine = (*SMALL, "task.name=dataset", f"task.path={path}", "task.chat=false", "task.reward=exact", "run.steps=3")
    stop_at(tmp_path / "run", 1, (*mine, "checkpoint.every=1"))
    write(tmp_path / "mine.jsonl", chains(149))
    with pytest.raises(ResumeError, match=r"goes on with the data that it began with: .* put the files back"):
        plan(tmp_path / "run", None, (), told=pytest.fail)
    write(tmp_path / "mine.jsonl", chains(150))
    assert plan(tmp_path / "run", None, (), told=pytest.fail).checkpoint.step == 1


def test_data_are_refused_before_a_model_is_loaded(tmp_path):
    path = write(tmp_path / "all.jsonl", [*chains(150), {"problem": "1+1=", "answer": None}])
    with pytest.raises(DataError, match=r"line 151: answer must be a text"):
        check(load(settings=("task.name=dataset", f"task.path={path}", "task.reward=exact")))
    path = write(tmp_path / "some.jsonl", chains(150))
    kept = ("task.name=dataset", f"task.path={path}", "task.reward=exact", "task.heldout_share=0.0")
    with pytest.raises(DataError, match=r"no held-out problems to evaluate on"):
        check(load(settings=kept))
    check(load(settings=(*kept, "eval.prompts=0")))
