"""``tether compare`` as a shell would call it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.evals.made import answers, made_run, problems, write_lines

from .calling import tether


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    return [
        made_run(tmp_path / "sat-1", answers(0.3), preset="sat"),
        made_run(tmp_path / "sat-2", answers(0.35, seed=1), preset="sat", seed=1),
        made_run(tmp_path / "grpo", answers(0.7, seed=2), end="fail"),
    ]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def row(out: str, name: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.strip().startswith(name)]
    return line.strip().removeprefix(name).split("  ")


def test_runs_stand_side_by_side_with_intervals_and_p_values(runs, capsys):
    code, out, _ = tether(capsys, "compare", *runs)
    assert code == 0
    assert [cell.strip() for cell in row(out, "state") if cell.strip()] == ["finished", "finished", "failed"]
    assert "40 x 4" in out
    assert "paired, 40 problems" in out
    assert row(out, "p  ")[-1].strip() == "0.0001"
    assert "grpo is failed: no space left" in out
    assert "seeds" in out
    assert "algorithm.preset" in out


def test_numbers_are_written_as_json(runs, tmp_path, capsys):
    file = tmp_path / "out.json"
    assert tether(capsys, "compare", *runs, "--trailing", "--out", file).code == 0
    numbers = json.loads(file.read_text())
    first, second, third = numbers["runs"]
    assert numbers["difference_of"] == "trailing"
    assert first["difference"] is None
    gain = third["trailing"]["value"] - first["trailing"]["value"]
    assert third["difference"]["value"] == pytest.approx(gain)
    assert third["difference"]["low"] <= gain <= third["difference"]["high"]
    assert second["numbers"]["staleness/max"] == 20.0
    assert [group["runs"] for group in numbers["groups"]] == [["sat-1", "sat-2"], ["grpo"]]
    assert numbers["groups"][1]["last"]["low"] is None


def test_the_page_needs_no_network_and_escapes_what_it_is_given(runs, tmp_path, capsys):
    nasty = made_run(tmp_path / "a<b>&c", answers(0.4), preset="<script>alert(1)</script>")
    file = tmp_path / "out.html"
    assert tether(capsys, "compare", *runs, nasty, "--out", file).code == 0
    page = file.read_text()
    body = re.sub(r"(?s)<script.*?</script>", "", page)
    assert "a&lt;b&gt;&amp;c" in body
    assert "<script>alert(1)" not in page
    assert "http" not in body.replace("http-equiv", "")
    assert "default-src 'none'" in page
    assert "What differs in the recipes" in page


def test_runs_that_do_not_fit_beside_each_other_get_a_table_below(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = tether(capsys, "compare", *runs).out
    assert out.count("Side by side") == 3
    assert out.count("accuracy, trailing 25 %") == 3 + 2


def test_files_of_evaluations_stand_beside_runs(runs, tmp_path, capsys):
    file = write_lines(tmp_path / "model.jsonl", problems(answers(0.5, seed=4, steps=(0,))))
    code, out, _ = tether(capsys, "compare", runs[0], file)
    assert code == 0
    assert "model.jsonl" in out
    assert "evaluated" in out
    assert "paired, 40 problems" in out


def test_a_journaled_name_is_compared_too(runs, capsys):
    code, out, _ = tether(capsys, "compare", *runs, "--metric", "reward/mean")
    assert code == 0
    assert "no interval was journaled" in out


def test_a_narrow_console_loses_nothing(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = tether(capsys, "compare", *runs).out
    assert "…" not in out
    assert out.count("Side by side") == 1
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "two runs or more"),
        (["nowhere"], "no run directory"),
        (["--out", "x.png"], "--out writes .html or .json"),
        (["--metric", "speed"], "has no metric 'speed'"),
    ],
)
def test_what_cannot_work_is_refused(runs, capsys, words, said):
    given = runs[:1] if not words or words == ["nowhere"] else runs[:2]
    code, _, err = tether(capsys, "compare", *given, *words)
    assert code in (1, 2)
    assert said in err
