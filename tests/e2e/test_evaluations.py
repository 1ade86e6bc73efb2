"""Evaluations of a whole run: another task than the one trained on, problem by problem, also across a death."""

import json

import pytest

from tests.e2e.quick import train
from tether.config.build import check
from tether.config.recipe import load
from tether.errors import ConfigError
from tether.journal.evaluated import in_one_evaluation


@pytest.fixture
def problems(tmp_path):
    path = tmp_path / "problems.jsonl"
    rows = ({"question": f"{n}+{n + 1}=", "answer": str((2 * n + 1) % 10)} for n in range(7))
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_another_task_than_the_one_trained_on_is_evaluated_by_a_criterion_of_its_own(problems, tmp_path):
    own = f"eval.task={{name='dataset', path='{problems}', heldout_share=1.0, chat=false}}"
    run = train(tmp_path / "run", own, "eval.reward.name=number", "eval.samples=2", "eval.every=3", "run.steps=3")
    before, after = in_one_evaluation(run.evaluated)
    assert [len(before), len(after)] == [7, 7]  # all problems, though eval.prompts says 16
    assert {(line.task, line.criterion, line.k) for line in before} == {("dataset", "number", 2)}
    assert len({line.problem for line in after}) == 7
    assert [line.step for line in after] == [3] * 7
    assert {version for line in after for version in line.versions} == {3}
    share = sum(sum(line.correct) for line in after) / 14
    assert run.evals[-1].metrics["eval/accuracy"].value == run.evals[-1].metrics["eval/avg@2"].value
    assert run.evals[-1].metrics["eval/accuracy"].value == pytest.approx(share)
    finish = run.last("finish").metrics
    assert finish["eval/last"].value == pytest.approx(share)
    assert finish["eval/accuracy_before"].count == 7.0


def test_a_file_of_problems_that_is_not_there_is_refused_before_a_model_is_loaded():
    recipe = load(settings=["eval.task={name='dataset', path='none.jsonl', heldout_share=1.0}"])
    with pytest.raises(ConfigError, match=r"no data at 'none\.jsonl'"):
        check(recipe)


def test_the_settings_of_an_evaluation_stand_in_the_resolved_recipe_and_make_it_again():
    from tether.config.recipe import from_tables
    from tether.config.resume import tables_of

    recipe = load(settings=["eval.task=sorting", "eval.reward={name='number'}", "eval.samples=4", "eval.top_p=0.9"])
    resolved = recipe.resolved()["eval"]
    assert (resolved["task"]["name"], resolved["reward"], resolved["samples"]) == ("sorting", {"name": "number"}, 4)
    assert from_tables(tables_of(recipe.resolved()), recipe.name) == recipe
