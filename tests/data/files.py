"""Data files for tests: the samples beside, and rows written in any format."""

import gzip
import json
from pathlib import Path

SAMPLES = Path(__file__).parent / "samples"


def sample_rows(name: str) -> list[dict]:
    return [json.loads(line) for line in (SAMPLES / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def write(path: Path, rows: list[dict]) -> str:
    """In the format that the name asks for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    elif path.name.endswith(".jsonl"):
        path.write_text(text, encoding="utf-8")
    else:
        path.write_text(json.dumps(rows), encoding="utf-8")
    return str(path)


def sums(count: int, start: int = 0) -> list[dict]:
    """Problems that no two indices share."""
    return [{"question": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(start, start + count)]
