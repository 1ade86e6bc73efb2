"""Data files as tables: columns first, then rows, of which only the columns that are needed are kept."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tether.data.source import Source
from tether.errors import ConfigError, DataError

Row = dict[str, Any]

ENDINGS = (".jsonl", ".jsonl.gz", ".json", ".parquet")
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
_MOST_FOLDER_FILES = 200_000
_INSTALL = "pip install 'tether-rl[data]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under column names."""

    columns: tuple[str, ...]
    """Those of the first row."""
    rows: Callable[[Sequence[str]], Iterator[tuple[str, Row]]]
    """Where each row is, in words, and its values in some columns; a column that a row lacks is left out."""


def open_table(source: Source) -> Table:
    """The table of a source; raises if there is none or it cannot be read."""
    path = Path(source.path)
    if path.is_file():
        return _joined([path])
    if path.is_dir():
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return _saved(source)
        return _joined(_files_of(path, source.split))
    if path.suffix in (".jsonl", ".json", ".gz", ".parquet") or source.path.count("/") != 1 or path.is_absolute():
        raise ConfigError(
            f"no data at {source.path!r} (looked from {Path.cwd().name or '/'}/); give a file that ends in "
            f"{', '.join(ENDINGS)}, a folder, or a hub data set such as 'openai/gsm8k'"
        )
    return _from_hub(source)


def _files_of(folder: Path, split: str) -> list[Path]:
    """Files of a folder that belong to a split by their names, or all of them where no name speaks of a split."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name.endswith(ENDINGS)]
    if not files:
        raise ConfigError(f"folder {str(folder)!r} has no file that ends in {', '.join(ENDINGS)}; give the right one")
    if len(files) > _MOST_FOLDER_FILES:
        raise ConfigError(f"folder {str(folder)!r} has {len(files)} data files; give the folder of one data set")
    named = {path: _split_of(path.relative_to(folder)) for path in files}
    if not any(named.values()):
        return files
    if chosen := [path for path in files if named[path] == split]:
        return chosen
    there = ", ".join(sorted({name for name in named.values() if name}))
    raise ConfigError(
        f"folder {str(folder)!r} has no files of split {split!r}; it has {there}: set split to one of them"
    )


def _split_of(path: Path) -> str:
    """The split that a name speaks of: ``train-00000-of-00001.parquet``, ``test/algebra/7.json``.

    >>> _split_of(Path("data/train-00000-of-00001.parquet")), _split_of(Path("test/algebra/7.json"))
    ('train', 'test')
    """
    for part in (*path.parts[:-1], path.name.partition(".")[0]):
        for split in SPLITS:
            if part == split or part.startswith((f"{split}-", f"{split}_")):
                return split
    return ""


def _joined(files: Sequence[Path]) -> Table:
    """Several files as one table; each is opened when its turn comes."""
    return Table(columns=_columns_of(files[0]), rows=lambda wanted: _rows_of(files, wanted))


def _columns_of(file: Path) -> tuple[str, ...]:
    if file.name.endswith(".parquet"):
        return tuple(_parquet(file).schema_arrow.names)
    for _, row in _json_rows(file):
        return tuple(row)
    raise DataError(f"{file} has no rows; a data file needs at least one: give another one, or make it again")


def _rows_of(files: Sequence[Path], wanted: Sequence[str]) -> Iterator[tuple[str, Row]]:
    for file in files:
        if file.name.endswith(".parquet"):
            yield from _parquet_rows(file, wanted)
        else:
            for where, row in _json_rows(file):
                yield where, {name: row[name] for name in wanted if name in row}


def _json_rows(file: Path) -> Iterator[tuple[str, Row]]:
    """Lines of JSON, an array of objects, or one object, which is one row."""
    try:
        if not file.name.endswith(".json"):
            yield from _lines(file)
            return
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file} must be UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except (OSError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {error}; check that it is whole and that you may read it") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{file} must be one JSON array or object: {error}; if it has an object a line, name it .jsonl"
        ) from error
    rows = content if isinstance(content, list) else [content]
    for number, row in enumerate(rows, 1):
        yield f"{file}, row {number}", _object(row, f"{file}, row {number}")


def _lines(file: Path) -> Iterator[tuple[str, Row]]:
    opener = gzip.open if file.name.endswith(".gz") else open
    with opener(file, "rt", encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{where} must be one JSON object; {error}: mend the line, or take it out") from error
            yield where, _object(row, where)


def _object(row: Any, where: str) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{where} must be a JSON object with a column a key; got {str(row)[:80]!r}")
    return row


def _parquet(file: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(f"{file} is Parquet, which needs pyarrow: {_INSTALL}, or give the data as JSONL") from error
    try:
        return pyarrow.parquet.ParquetFile(file)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise DataError(f"{file} is not a whole Parquet file: {error}; fetch or write it again") from error


def _parquet_rows(file: Path, wanted: Sequence[str]) -> Iterator[tuple[str, Row]]:
    opened = _parquet(file)
    columns = [name for name in wanted if name in opened.schema_arrow.names]
    number = 0
    for batch in opened.iter_batches(batch_size=10_000, columns=columns):
        for row in batch.to_pylist():
            number += 1
            yield f"{file}, row {number}", row


def _datasets(source: Source) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ConfigError(
            f"{source.path!r} is a Hugging Face data set, which needs datasets: {_INSTALL}, or give a JSONL or "
            "Parquet file"
        ) from error
    return datasets


def _saved(source: Source) -> Table:
    """A folder that ``save_to_disk`` wrote: one split, or several by name."""
    loaded = _datasets(source).load_from_disk(source.path)
    if isinstance(loaded, dict):
        if source.split not in loaded:
            there = ", ".join(loaded)
            raise ConfigError(f"folder {source.path!r} has no split {source.split!r}; it has {there}: set split to one")
        loaded = loaded[source.split]
    return _table_of(loaded, source)


def _from_hub(source: Source) -> Table:
    datasets = _datasets(source)
    try:
        loaded = datasets.load_dataset(source.path, source.subset or None, split=source.split)
    except Exception as error:  # of the hub's client there are dozens: offline, unknown, private, another split
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"hub data set {source.path!r} (split {source.split!r}, subset {source.subset or 'default'!r}) cannot be "
            f"loaded: {reason}; without a network, fetch it where there is one (datasets.load_dataset(...)."
            "save_to_disk(FOLDER), or its Parquet file) and give that path"
        ) from error
    return _table_of(loaded, source)


def _table_of(loaded: Any, source: Source) -> Table:
    def rows(wanted: Sequence[str]) -> Iterator[tuple[str, Row]]:
        columns = [name for name in wanted if name in loaded.column_names]
        number = 0
        for batch in loaded.select_columns(columns).iter(batch_size=1000):
            for values in zip(*(batch[name] for name in columns), strict=True):
                number += 1
                yield f"{source.path}:{source.split}, row {number}", dict(zip(columns, values, strict=True))

    return Table(columns=tuple(loaded.column_names), rows=rows)
