"""Rows that hold no problem say why: file, row, value."""

import pytest

from tether.data.problems import BadRow, read_problems
from tether.data.source import Source
from tether.errors import DataError

from .files import write


def only(tmp_path, row, name="a.jsonl"):
    _, rows = read_problems(Source(path=write(tmp_path / name, [{"prompt": "p", "answer": "a"}, row])))
    return list(rows)[1]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "a"}, "answer must be a text that is not empty; it is missing or null"),
        ({"prompt": "a", "answer": None}, "answer must be a text that is not empty; it is missing or null"),
        ({"prompt": "a", "answer": "  "}, "answer must be a text that is not empty; it is '  '"),
        ({"prompt": "a", "answer": True}, "answer must be a text that is not empty; it is True"),
        ({"prompt": "a", "answer": ["1", "2"]}, "answer must be a text that is not empty; it is ['1', '2']"),
        ({"prompt": "a", "answer": float("inf")}, "answer must be a text that is not empty; it is inf"),
        ({"prompt": "", "answer": "1"}, "prompt must be a text that is not empty; it is ''"),
        (
            {"prompt": 3, "answer": "1"},
            "a prompt must be a text or a list of messages with role and content; prompt is 3",
        ),
        ({"prompt": [], "answer": "1"}, "a prompt must be one user message, with a system message before it at most"),
        ({"prompt": [{"role": "user"}], "answer": "1"}, "a list of messages with role and content; prompt is [{'role'"),
    ],
)
def test_a_row_without_a_text_or_a_reference_says_which_row_and_what_it_has(tmp_path, row, why):
    bad = only(tmp_path, row)
    assert isinstance(bad, BadRow)
    assert bad.why.startswith(f"{tmp_path}/a.jsonl, line 2: ")
    assert why in bad.why


def test_a_column_that_is_missing_in_one_row_names_the_row_in_parquet_too(tmp_path):
    assert "a.parquet, row 2: answer must be" in only(tmp_path, {"prompt": "a", "answer": None}, "a.parquet").why


def test_a_long_value_is_shown_in_part(tmp_path):
    assert len(only(tmp_path, {"prompt": "a", "answer": ["x" * 5000, ""]}).why) < 300


@pytest.mark.parametrize(("value", "text"), [(72, "72"), (72.0, "72"), (0.5, "0.5"), (["7"], "7"), ([7], "7")])
def test_numbers_and_lists_of_one_are_references(tmp_path, value, text):
    assert only(tmp_path, {"prompt": "a", "answer": value}).reference == text


def test_messages_are_a_user_with_a_system_before_and_an_answer_after_at_most(tmp_path):
    turns = [("system", "s"), ("user", "u"), ("assistant", "never seen")]
    said = [{"role": role, "content": content} for role, content in turns]
    row = only(tmp_path, {"prompt": said, "answer": "1"})
    assert (row.system, row.text) == ("s", "u")


def test_a_chat_of_more_turns_is_not_cut_but_refused(tmp_path):
    said = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    assert (
        "prompt has user, assistant, user: write the earlier turns"
        in only(tmp_path, {"prompt": said, "answer": "1"}).why
    )


def test_a_file_without_rows_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n\n")
    with pytest.raises(DataError, match="has no rows; a data file needs at least one"):
        read_problems(Source(path=str(tmp_path / "a.jsonl")))
    path = write(tmp_path / "b.parquet", [{"prompt": "a", "answer": "b"}])
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.parquet.read_table(path).slice(0, 0), path)
    with pytest.raises(DataError, match="has no rows; a source needs at least one"):
        read_problems(Source(path=path))
