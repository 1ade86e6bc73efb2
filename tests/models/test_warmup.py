"""The warm-up: trains on answers only, repeats itself, writes a folder that loads."""

import dataclasses

import pytest
import torch
from click.testing import CliRunner

from tests.models.small import logits, small
from tether.cli.warmup import command
from tether.errors import ModelError
from tether.models import warmup
from tether.models.fingerprint import fingerprint
from tether.models.loading import load_model
from tether.models.warmup import WarmupOptions, batch, exam, respond, run_warmup
from tether.tasks.arithmetic import Arithmetic, Pupil
from tether.tasks.lessons import Course

EASY = Course(Pupil(task=Arithmetic(min_operations=2, max_operations=3), unsure=0.0))


@pytest.fixture
def brief(monkeypatch):
    """Exams and updates small enough for a test."""
    monkeypatch.setattr(warmup, "CHECK_EVERY", 2)
    monkeypatch.setattr(warmup, "CHECK_QUESTIONS", 8)
    monkeypatch.setattr(warmup, "FINAL_QUESTIONS", 8)
    monkeypatch.setattr(warmup, "MAX_ANSWER", 8)
    monkeypatch.setattr(warmup, "BATCH", 4)


def test_loss_is_on_the_answer_and_its_end_only():
    loaded = small()
    ids, labels = batch(loaded, [("1+2*3=", "3,2"), ("1+2=", "3")])
    assert loaded.tokenizer.decode(ids[0]) == "1+2*3=3,2<eos>"
    assert ids[1].tolist()[6:] == [loaded.pad_id] * 4
    three, two, comma, end = [*loaded.tokenizer.encode("32,"), 1]
    assert labels[0].tolist() == [-100] * 6 + [three, comma, two, end]
    assert labels[1].tolist() == [-100] * 4 + [three, end] + [-100] * 4


def test_padding_does_not_change_what_comes_before_it():
    loaded = small()
    ids, _ = batch(loaded, [("1+2*3=", "3,2"), ("1+2=", "3")])
    with torch.no_grad():
        padded = loaded.model(input_ids=ids).logits[1, :6]
    torch.testing.assert_close(padded, logits(loaded, "1+2=3<eos>")[0])


def test_same_seed_same_weights_and_another_seed_others(tmp_path, brief):
    marks = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run_warmup(EASY, WarmupOptions(seed=seed, steps=3), out=tmp_path / name)
        marks.append(fingerprint(load_model(str(tmp_path / name)).model.state_dict()))
    assert marks[0] == marks[1] != marks[2]


def test_global_random_state_is_left_alone(tmp_path, brief):
    before = torch.random.get_rng_state()
    run_warmup(EASY, WarmupOptions(steps=1), out=tmp_path / "m")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_result_progress_and_card_say_what_happened(tmp_path, brief):
    seen = []
    result = run_warmup(EASY, WarmupOptions(steps=4), out=tmp_path / "m", progress=seen.append)
    assert [p.step for p in seen] == [1, 2, 3, 4]
    assert [p.marks is not None for p in seen] == [False, True, False, True]
    assert (result.num_steps, result.is_reached, result.num_parameters) == (4, False, 372_352)
    assert f"| held-out accuracy, greedy | {result.greedy_accuracy:.3f} |" in (result.folder / "README.md").read_text()


def test_it_stops_at_the_first_exam_that_is_good_enough(tmp_path, brief, monkeypatch):
    given = iter([(0.9, 0.5), (0.2, 1.0), (0.3, 1.0), (0.3, 1.0), (0.2, 1.0)])
    monkeypatch.setattr(warmup, "exam", lambda *_, **__: warmup.Marks(*next(given)))
    result = run_warmup(EASY, WarmupOptions(steps=20, target=0.25), out=tmp_path / "m")
    assert (result.num_steps, result.is_reached) == (6, True)


@pytest.mark.parametrize(("steps", "target"), [(0, 0.25), (5, 0.0), (5, 1.0)])
def test_settings_that_make_no_sense_are_refused(steps, target):
    with pytest.raises(ModelError, match="steps >= 1 and a target between 0 and 1"):
        WarmupOptions(steps=steps, target=target)


def test_unknown_model_is_refused_with_the_names_there_are():
    with pytest.raises(ModelError, match=r"no embedded model 'tiny-mow'; there are tiny-moe, tiny-dense, "):
        WarmupOptions(model="tiny-mow")


def test_folder_in_use_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(warmup, "new_model", lambda _: pytest.fail("worked first"))
    with pytest.raises(ModelError, match="exists"):
        run_warmup(EASY, WarmupOptions(steps=1), out=tmp_path)


def test_responses_do_not_depend_on_the_company_when_greedy():
    loaded = load_model("tiny-moe")
    questions = [EASY.exam(index)[0] for index in range(12)]
    together = respond(loaded, questions, temperature=0.0)
    assert together == [respond(loaded, [question], temperature=0.0)[0] for question in questions]


def test_a_response_that_never_ends_is_no_response(monkeypatch):
    monkeypatch.setattr(warmup, "MAX_ANSWER", 5)
    never = dataclasses.replace(small(), eos_ids=(10**6,))
    assert respond(never, ["1+2=", "1+2*3="], temperature=1.0) == [None, None]
    assert exam(never, EASY, count=3, temperature=1.0) == (0.0, 0.0)


def test_command_ends_with_one_line_of_figures_and_says_that_the_target_was_missed(tmp_path, brief):
    result = CliRunner().invoke(command, ["--out", str(tmp_path / "m"), "--steps", "2", "--target", "0.99"])
    assert result.exit_code == 0, result.output
    lines = result.output.strip().splitlines()
    assert lines[-2] == "target 0.99, with 99% of the answers well-formed, not reached in 2 updates"
    assert lines[-1].startswith(f"{tmp_path / 'm'}: 372,352 parameters, 2 updates, accuracy at temperature 1 0.")
    assert load_model(str(tmp_path / "m")).eos_ids == (1,)


def test_command_makes_the_model_that_is_named_and_teaches_it_its_own_task(tmp_path, brief):
    result = CliRunner().invoke(
        command, ["--model", "tiny-dense-sorting", "--out", str(tmp_path / "m"), "--steps", "1"]
    )
    assert result.exit_code == 0, result.output
    assert load_model(str(tmp_path / "m")).model.config.model_type == "qwen3"
    card = (tmp_path / "m" / "README.md").read_text()
    assert card.splitlines()[6] == "# tiny-dense-sorting"
    assert "lists of 3 to 10 digits" in card
    assert "`tether warmup --model tiny-dense-sorting`" in card
