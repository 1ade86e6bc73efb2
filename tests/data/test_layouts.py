"""Published layouts are recognised by their columns, and references are read as each writes them."""

import pytest

from tether.data.layouts import LAYOUTS, after_hashes, boxed_or_whole, last_boxed, whole_number
from tether.data.problems import BadRow, read_problems
from tether.data.source import Columns, Source
from tether.errors import ConfigError, UnknownNameError

from .files import SAMPLES, sample_rows, write

KNOWN = {
    "dapo-math": "dapo-math",
    "dolci-math": "dolci-math",
    "gsm8k": "gsm8k",
    "math": "math",
    "math-500": "math-500",
    "aime-upper": "aime",
    "aime-lower": "aime",
}


def read(source: Source):
    layout, rows = read_problems(source)
    return layout, list(rows)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize(("sample", "layout"), KNOWN.items())
def test_a_layout_is_recognised_by_its_columns_in_every_format(tmp_path, sample, layout, ending):
    path = write(tmp_path / f"{sample}.{ending}", sample_rows(sample))
    found, rows = read(Source(path=path))
    assert found.name == layout
    assert len(rows) == len(sample_rows(sample))
    assert not any(isinstance(row, BadRow) for row in rows)


def test_every_layout_has_a_sample():
    assert {layout.name for layout in LAYOUTS} == set(KNOWN.values())


@pytest.mark.parametrize(
    ("sample", "column"),
    [("gsm8k", "#### "), ("aime-upper", None), ("math-500", None)],
)
def test_references_are_what_the_rows_say(sample, column):
    _, rows = read(Source(path=str(SAMPLES / f"{sample}.jsonl")))
    written = [str(row.get("answer", row.get("Answer"))) for row in sample_rows(sample)]
    expected = [text.split(column)[1].replace(",", "") if column else text for text in written]
    assert [row.reference for row in rows] == expected


def test_the_prompt_of_dapo_is_kept_as_it_is_and_without_its_instruction():
    path = str(SAMPLES / "dapo-math.jsonl")
    _, (first, *_) = read(Source(path=path))
    assert first.text == sample_rows("dapo-math")[0]["prompt"][0]["content"]
    assert first.bare.startswith("A gardener plants")
    assert first.bare.endswith("are left?")
    assert first.identity == first.bare.casefold()


def test_keys_are_the_rows_own_names_where_a_layout_has_some():
    _, rows = read(Source(path=str(SAMPLES / "aime-upper.jsonl")))
    assert [row.key for row in rows[:2]] == ["ours-I-1", "ours-I-2"]
    _, rows = read(Source(path=str(SAMPLES / "gsm8k.jsonl")))
    assert len(rows[0].key) == 16


def test_answers_of_aime_are_whole_numbers_below_1000(tmp_path):
    rows = [{"id": n, "problem": f"Find {n}.", "answer": answer} for n, answer in enumerate([7, "025", 1000, "x"])]
    _, found = read(Source(path=write(tmp_path / "aime.jsonl", rows)))
    assert [row.reference for row in found[:2]] == ["7", "025"]
    assert "line 3: a reference of layout aime must be a whole number from 0 to 999; answer is 1000" in found[2].why
    assert isinstance(found[3], BadRow)


def test_more_columns_than_aime_has_make_another_layout(tmp_path):
    rows = [{"id": 1, "problem": "Solve.", "answer": "x = 2", "source": "ours"}]
    assert read(Source(path=write(tmp_path / "other.jsonl", rows)))[0].name == "generic"


def test_question_and_answer_without_hashes_is_not_gsm8k(tmp_path):
    layout, (row,) = read(Source(path=write(tmp_path / "a.jsonl", [{"question": "1 + 1?", "answer": "2"}])))
    assert (layout.name, row.text, row.reference) == ("generic", "1 + 1?", "2")


def test_a_solution_with_a_box_is_read_and_without_one_taken_whole(tmp_path):
    rows = [{"prompt": "a", "solution": r"so \boxed{3}"}, {"prompt": "b", "solution": "34"}]
    _, found = read(Source(path=write(tmp_path / "a.jsonl", rows)))
    assert [row.reference for row in found] == ["3", "34"]


def test_a_named_layout_goes_before_what_the_columns_show():
    with pytest.raises(ConfigError, match=r"needs a column with the reference: expected reward_model\.ground_truth"):
        read(Source(path=str(SAMPLES / "gsm8k.jsonl"), layout="dapo-math", columns=Columns(prompt="question")))
    with pytest.raises(UnknownNameError, match=r"no layout 'gms8k'; there are .*gsm8k.*generic"):
        read(Source(path=str(SAMPLES / "gsm8k.jsonl"), layout="gms8k"))


def test_columns_may_be_named_and_lie_inside_others(tmp_path):
    rows = [{"body": {"q": "1 + 1?"}, "gold": 2, "who": "You count.", "nr": 8}]
    own = Columns(prompt="body.q", reference="gold", system="who", id="nr")
    _, (row,) = read(Source(path=write(tmp_path / "a.parquet", rows), columns=own))
    assert (row.text, row.reference, row.system, row.key) == ("1 + 1?", "2", "You count.", "8")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"input_ids": 1, "labels_": 2}],
            r"column with the prompt: expected prompt or .*found input_ids, labels_; say",
        ),
        ([{"prompt": "a", "reply": "b"}], r"column with the reference: expected answer or .* found prompt, reply; say"),
    ],
)
def test_a_missing_column_is_an_error_that_shows_expected_and_found_and_the_way_out(tmp_path, rows, message):
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ConfigError, match=message) as told:
        read(Source(path=path))
    assert 'columns = {prompt = "...", reference = "..."}' in str(told.value)


@pytest.mark.parametrize("name", ["system", "id"])
def test_a_named_column_that_is_not_there_is_an_error(tmp_path, name):
    path = write(tmp_path / "a.jsonl", [{"prompt": "a", "answer": "b"}])
    with pytest.raises(ConfigError, match=rf"no column 'who' for columns\.{name}; found prompt, answer"):
        read(Source(path=path, columns=Columns(**{name: "who"})))


def test_what_a_reference_is_read_from():
    assert after_hashes("#### 7\n#### 1,234,567") == "1234567"
    assert after_hashes("#### 1,2") == "1,2"
    assert after_hashes("7") == ""
    assert last_boxed(r"\boxed{\frac{1}{3}} or \fbox{2}") == "2"
    assert last_boxed(r"\boxed 7") == "7"
    assert last_boxed(r"\boxed{7") == last_boxed("7") == ""
    assert boxed_or_whole("7") == "7"
    assert [whole_number(text) for text in ("0", "999", "007", "-1", "1.5", "")] == ["0", "999", "007", "", "", ""]
