"""Files, folders and data sets as tables; what cannot be read says why and what to do."""

import builtins

import pytest

from tether.data.source import Source
from tether.data.tables import open_table
from tether.errors import ConfigError, DataError

from .files import sums, write


def values(source: Source, column: str = "question") -> list[str]:
    return [row[column] for _, row in open_table(source).rows([column])]


def read_all(source: Source) -> None:
    table = open_table(source)
    list(table.rows(table.columns))


ROWS = sums(5)
QUESTIONS = [row["question"] for row in ROWS]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json", "a.parquet"])
def test_rows_are_the_same_in_every_format_and_hold_only_what_is_asked_for(tmp_path, name):
    table = open_table(Source(path=write(tmp_path / name, ROWS)))
    assert table.columns == ("question", "answer")
    assert [row for _, row in table.rows(["answer"])] == [{"answer": row["answer"]} for row in ROWS]


def test_an_object_in_a_json_file_is_one_row_and_a_folder_of_them_is_a_table(tmp_path):
    for n, row in enumerate(ROWS):
        for split in ("train", "test"):
            (tmp_path / split / "sums").mkdir(parents=True, exist_ok=True)
            text = str({"question": f"{split} {row['question']}"}).replace("'", '"')
            (tmp_path / split / "sums" / f"{n}.json").write_text(text)
    assert values(Source(path=str(tmp_path))) == [f"train {question}" for question in QUESTIONS]
    assert values(Source(path=str(tmp_path), split="test")) == [f"test {question}" for question in QUESTIONS]


def test_files_of_a_split_are_read_in_order_and_a_split_that_is_not_there_is_named(tmp_path):
    write(tmp_path / "data" / "train-00001-of-00002.parquet", ROWS[3:])
    write(tmp_path / "data" / "train-00000-of-00002.parquet", ROWS[:3])
    write(tmp_path / "data" / "test-00000-of-00001.parquet", sums(1, start=99))
    assert values(Source(path=str(tmp_path))) == QUESTIONS
    with pytest.raises(ConfigError, match=r"no files of split 'dev'; it has test, train: set split to one of them"):
        open_table(Source(path=str(tmp_path), split="dev"))


def test_a_folder_whose_names_speak_of_no_split_is_read_whole(tmp_path):
    write(tmp_path / "b.jsonl", ROWS[2:])
    write(tmp_path / "a.parquet", ROWS[:2])
    assert values(Source(path=str(tmp_path))) == QUESTIONS


def test_a_folder_without_data_is_refused(tmp_path):
    (tmp_path / "README.md").write_text("hello")
    with pytest.raises(ConfigError, match=r"has no file that ends in \.jsonl, \.jsonl\.gz, \.json, \.parquet"):
        open_table(Source(path=str(tmp_path)))


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_folder_that_datasets_saved_is_read_by_split(tmp_path, split):
    datasets = pytest.importorskip("datasets")
    whole = datasets.DatasetDict(
        train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(sums(2, start=50))
    )
    whole.save_to_disk(tmp_path / "both")
    whole["train"].save_to_disk(tmp_path / "one")
    assert values(Source(path=str(tmp_path / "both"), split=split))[0] == (
        "What is 0 + 1?" if split == "train" else "What is 50 + 1?"
    )
    assert values(Source(path=str(tmp_path / "one"))) == QUESTIONS
    with pytest.raises(ConfigError, match=r"no split 'dev'; it has train, test"):
        open_table(Source(path=str(tmp_path / "both"), split="dev"))


def test_a_hub_data_set_is_loaded_by_name_subset_and_split(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    asked = []

    def load_dataset(*where, **options):
        asked.append((where, options))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert values(Source(path="openai/gsm8k", subset="main", split="test")) == QUESTIONS
    assert asked[0] == (("openai/gsm8k", "main"), {"split": "test"})


def test_a_hub_data_set_without_a_network_says_what_to_do_instead():
    pytest.importorskip("datasets")
    with pytest.raises(DataError, match=r"hub data set 'nobody/nothing' \(split 'train', .*save_to_disk\(FOLDER\)"):
        open_table(Source(path="nobody/nothing"))


@pytest.mark.parametrize("path", ["nothing.jsonl", "a/b/c", "/nowhere/a", "data/nothing.parquet"])
def test_a_path_where_nothing_is_says_what_may_be_there(path):
    with pytest.raises(ConfigError, match=r"no data at .*; give a file that ends in \.jsonl, .*'openai/gsm8k'"):
        open_table(Source(path=path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', r"a\.jsonl, line 2 must be one JSON object; .*mend the line"),
        ("a.jsonl", b"[1]\n", r"a\.jsonl, line 1 must be a JSON object with a column a key; got '\[1\]'"),
        ("a.jsonl", b'{"a": "\xff"}\n', r"a\.jsonl must be UTF-8 .*save it as UTF-8"),
        ("a.json", b'{"a": 1}\n{"a": 2}\n', r"a\.json must be one JSON array or object: .*name it \.jsonl"),
        ("a.json", b"[]", r"a\.json has no rows"),
        ("a.jsonl.gz", b'{"a": 1}\n', r"a\.jsonl\.gz cannot be read: Not a gzipped file"),
        ("a.parquet", b"PAR1", r"a\.parquet is not a whole Parquet file"),
    ],
)
def test_a_damaged_file_is_one_message_with_the_way_out(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_all(Source(path=str(tmp_path / name)))


@pytest.mark.parametrize(("library", "is_file"), [("pyarrow", True), ("datasets", False)])
def test_a_library_that_is_not_installed_is_named_with_the_way_to_get_it(tmp_path, monkeypatch, library, is_file):
    path = write(tmp_path / "a.parquet", ROWS) if is_file else "openai/gsm8k"
    real = builtins.__import__

    def without(name, *rest, **options):
        if name.partition(".")[0] == library:
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=rf"needs {library}: pip install 'tether-rl\[data\]', or give"):
        open_table(Source(path=path))
