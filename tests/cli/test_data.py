"""``tether data``: what is in files, and a file to begin with."""

import re

import pytest

from tests.cli.calling import tether
from tests.data.files import SAMPLES, sample_rows, sums, write
from tether.data.layouts import LAYOUTS
from tether.tasks.dataset import Dataset


def test_a_look_says_layout_rows_repeats_conflicts_and_shows_some(tmp_path, capsys):
    rows = [*sums(120), {"question": "What is 1 + 1?", "answer": "3"}, {"question": "?"}]
    told = tether(capsys, "data", "look", write(tmp_path / "a.jsonl", rows), "--examples", "2")
    assert told.code == 0, told.err
    assert "layout generic, 122 rows, 120 problems" in told.out
    assert "1 rows repeat a problem, 1 with another reference" in told.out
    assert "'What is 0 + 1?' -> '1'" in told.out
    assert told.out.count("' -> '") == 2
    assert "1 of 122 rows dropped; the first: " in told.out
    assert "the first was kept: '2' at " in told.out


def test_a_look_takes_layout_and_columns(tmp_path, capsys):
    path = write(tmp_path / "a.jsonl", [{"q": "1 + 1?", "gold": 2}])
    assert "has only 1 rows" in tether(capsys, "data", "look", path, "--prompt", "q", "--reference", "gold").out
    told = tether(capsys, "data", "look", path)
    assert told.code == 1
    assert "found q, gold" in told.err
    told = tether(capsys, "data", "look", SAMPLES / "gsm8k.jsonl", "--layout", "gsm")
    assert "no layout 'gsm'; there are" in told.err


def test_a_sample_is_a_file_in_the_layout_of_dapo_whose_problems_are_right(tmp_path, capsys):
    out = tmp_path / "demo.jsonl"
    told = tether(capsys, "data", "sample", "--out", out, "--count", "300")
    assert told.code == 0, told.err
    assert f"tether train smollm2-math --set task.path={out}" in told.out
    task = Dataset(path=str(out), instruction="drop")
    assert task.pool.censuses[0].layout == "dapo-math"
    assert task.size("train") + task.size("heldout") == 300
    for entry in task.pool.train[0]:
        left, sign, right = re.search(r"(\d+) (.) (\d+)", entry.bare).groups()
        right_answer = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
        assert entry.reference == str(right_answer)


def test_a_sample_has_the_columns_and_the_wrapping_of_the_layout(tmp_path, capsys):
    out = tmp_path / "demo.jsonl"
    tether(capsys, "data", "sample", "--out", out, "--count", "1")
    task = Dataset(path=str(out), heldout_share=0.0)
    (entry,) = task.pool.train[0]
    assert entry.bare != entry.text
    (dapo,) = [layout for layout in LAYOUTS if layout.name == "dapo-math"]
    assert dapo.recognises(sample_rows("dapo-math")[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [("there.jsonl", "is there already"), ("a.parquet", "must end in .jsonl"), ("no/a.jsonl", "cannot write")],
)
def test_a_sample_that_cannot_be_written_says_why(tmp_path, capsys, name, message):
    (tmp_path / "there.jsonl").write_text("mine")
    told = tether(capsys, "data", "sample", "--out", tmp_path / name, "--count", "1")
    assert told.code != 0
    assert message in told.err
    assert (tmp_path / "there.jsonl").read_text() == "mine"
