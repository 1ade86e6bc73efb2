import json

import pytest
import torch

from tests.e2e.quick import train
from tether.cli import export

from .calling import tether


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trained fast enough that its answers are others than those of the model it began with."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train(folder, "run.steps=4", "trainer.lr=1e-3", "trainer.warmup=0", "eval.prompts=0").folder


def measured(capsys, *words) -> dict:
    told = tether(capsys, "eval", *words, "--json")
    assert told.code == 0, told.err
    return json.loads(told.out)


def test_a_run_and_its_export_are_measured_alike(capsys, run, tmp_path):
    out = tmp_path / "exported"
    export.export(run, out)
    ours = measured(capsys, run, "--n", 64)
    assert (ours["step"], ours["version"]) == (4, 4)
    of_no_run = {"step": 0, "version": 0, "model": ""}
    assert {**measured(capsys, out, "--n", 64), "model": ""} == {**ours, **of_no_run}
    assert {**measured(capsys, run / "model", "--n", 64), "model": ""} == {**ours, **of_no_run}


def test_an_export_is_a_plain_model_of_transformers(run, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    out = tmp_path / "exported"
    export.export(run, out)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    ids = tokenizer("4+3*5=", return_tensors="pt").input_ids
    answer = model.generate(ids, max_new_tokens=16, do_sample=False)
    assert tokenizer.decode(answer[0]).startswith("4+3*5=")
    trained = AutoModelForCausalLM.from_pretrained(run / "model").state_dict()
    assert all(torch.equal(trained[name], tensor) for name, tensor in model.state_dict().items())


def test_training_has_changed_the_model(capsys, run):
    before = measured(capsys, "tiny-moe", "--n", 64)
    assert before != {**measured(capsys, run, "--n", 64), "model": before["model"]}


def test_the_same_seed_measures_the_same_and_another_seed_asks_others(capsys):
    one, again, other = (measured(capsys, "tiny-moe", "--n", 48, "--seed", seed) for seed in (0, 0, 1))
    assert one == again
    assert (one["accuracy"], one["length_mean"]) != (other["accuracy"], other["length_mean"])


def test_greedy_and_bfloat16_are_options(capsys):
    greedy = measured(capsys, "tiny-moe", "--n", 16, "--temperature", 0, "--dtype", "bfloat16")
    assert (greedy["temperature"], greedy["dtype"]) == (0.0, "bfloat16")


def test_the_accuracy_is_printed_with_its_interval_and_how_it_was_measured(capsys):
    told = tether(capsys, "eval", "tiny-moe", "--n", 16, "--task", "arithmetic")
    assert told.code == 0
    first, second = told.out.splitlines()
    assert first.startswith("accuracy 0.")
    assert first.endswith("(16 prompts)")
    assert "95 % interval" in first
    assert "task arithmetic, temperature 1, seed 0, dtype float32" in second


def test_numbers_as_json_carry_the_interval_and_the_settings(capsys):
    told = measured(capsys, "tiny-moe", "--n", 16)
    assert {"accuracy", "accuracy_low", "accuracy_high", "length_mean", "truncated_fraction"} <= told.keys()
    assert told["accuracy_low"] <= told["accuracy"] <= told["accuracy_high"]
    assert (told["n"], told["seed"], told["task"]) == (16, 0, "arithmetic")


def test_short_answers_are_cut_and_count_as_wrong(capsys):
    told = measured(capsys, "tiny-moe", "--n", 16, "--max-tokens", 1)
    assert (told["accuracy"], told["truncated_fraction"]) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-model"], "no model 'no-such-model'"),
        (["tiny-moe", "--task", "chess"], "no task 'chess'; there are arithmetic, "),
        (["tiny-moe", "--max-tokens", "100000"], "of the model's context to the prompt"),
    ],
)
def test_what_cannot_be_measured_is_one_message(capsys, words, message):
    told = tether(capsys, "eval", *words)
    assert told.code == 1
    assert told.err.startswith("error: ")
    assert message in told.err


@pytest.mark.parametrize("words", [["tiny-moe", "--n", "0"], ["tiny-moe", "--temperature", "-1"], []])
def test_words_that_make_no_sense_are_a_usage_error(capsys, words):
    assert tether(capsys, "eval", *words).code == 2


def test_a_run_that_did_not_finish_says_so(capsys, tmp_path):
    from tether.journal import RunWriter
    from tether.records import Event

    with RunWriter(tmp_path / "run") as writer:
        writer.config({})
        writer.event(Event(event="start", step=0, version=0))
    told = tether(capsys, "eval", tmp_path / "run")
    assert told.code == 1
    assert "has no model/: it did not finish" in told.err


def test_a_run_is_asked_its_own_task_with_its_options(capsys, tmp_path):
    settings = ("task.max_operations=4", "run.steps=1", "eval.prompts=16", "eval.temperature=0", "engine.dtype=float32")
    run = train(tmp_path / "run", *settings)
    told = measured(capsys, run.folder, "--n", 16, "--temperature", 0)
    last = run.evals[-1].metrics
    assert told["accuracy"] == last["eval/accuracy"].value
    assert told["length_mean"] == last["eval/length_mean"].value
