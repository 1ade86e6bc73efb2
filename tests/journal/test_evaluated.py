"""The lines of ``evals.jsonl``: what is written comes back, and a failed sample is no wrong one."""

import json
from dataclasses import replace

import pytest

from tether.errors import DataError, RunDirectoryError
from tether.journal.evaluated import Evaluated, evaluated_from_json, evaluated_to_json, in_one_evaluation
from tether.journal.reader import RunView
from tether.journal.schema import EVALS_FILE, LINE_FILES, to_line
from tether.journal.writer import RunWriter

LINE = Evaluated(
    step=5,
    version=10,
    task="aime",
    criterion="math",
    problem="aime/7",
    prompt_id="aime/heldout/0/3",
    reference="204",
    seed=3,
    temperature=1.0,
    top_p=0.95,
    max_tokens=64,
    versions=(10, 10, 8),
    correct=(True, False, None),
    extracted=("204", None, None),
    status=("correct", "no_answer", "failed"),
    length=(12, 64, 3),
    truncated=(False, True, False),
)


def test_a_line_comes_back_as_it_was_written():
    assert evaluated_from_json(json.loads(to_line(evaluated_to_json(LINE)))) == LINE


def test_a_sample_that_could_not_be_judged_is_null_and_no_zero():
    assert evaluated_to_json(LINE)["correct"] == [1, 0, None]
    assert not LINE.is_judged
    assert replace(LINE, correct=(True, False, False)).is_judged


def test_k_is_the_number_of_samples_and_a_line_that_says_otherwise_is_refused():
    assert evaluated_to_json(LINE)["k"] == LINE.k == 3
    with pytest.raises(DataError, match="has 3 samples, but says k = 8"):
        evaluated_from_json({**evaluated_to_json(LINE), "k": 8})


def test_samples_with_an_entry_too_few_are_refused():
    with pytest.raises(DataError, match="one entry everywhere"):
        replace(LINE, length=(1, 2))
    with pytest.raises(DataError, match="1 or 0 is needed, got 2"):
        evaluated_from_json({**evaluated_to_json(LINE), "correct": [1, 2, 0]})


def test_the_file_is_one_of_those_that_a_resumed_run_cuts_back(tmp_path):
    assert EVALS_FILE in LINE_FILES
    with RunWriter(tmp_path / "run") as writer:
        writer.config({})
        writer.evaluated([LINE])
        kept = writer.offsets()
        writer.evaluated([replace(LINE, step=6)])
        writer.cut_back(kept, tmp_path / "cut")
    assert RunView(tmp_path / "run").evaluated == (LINE,)
    assert json.loads((tmp_path / "cut" / EVALS_FILE).read_bytes())["step"] == 6


def test_a_run_from_before_has_none_and_a_foreign_line_is_told(tmp_path):
    with RunWriter(tmp_path / "run") as writer:
        writer.config({})
    (tmp_path / "run" / EVALS_FILE).unlink()
    assert RunView(tmp_path / "run").evaluated == ()
    (tmp_path / "run" / EVALS_FILE).write_text('{"schema":1,"step":0}\n')
    with pytest.raises(RunDirectoryError, match=r"line 1 of .*evals\.jsonl is not a line of a run"):
        _ = RunView(tmp_path / "run").evaluated


def test_evaluations_are_told_apart_by_step():
    first, second = replace(LINE, step=0), replace(LINE, step=0, prompt_id="other")
    assert in_one_evaluation([first, second, LINE]) == [[first, second], [LINE]]
