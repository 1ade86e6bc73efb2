import json
import subprocess
import sys

import pytest

from tests.cli.calling import tether
from tests.journal.books import edit, make_books
from tether.journal import RunWriter


def test_a_balance_that_closes_is_an_equation_and_exit_code_0(tmp_path, capsys):
    told = tether(capsys, "ledger", make_books(tmp_path / "run", late=1))
    assert told.code == 0
    assert told.out.splitlines()[0] == "admitted 6 = trained 3 + filtered 1 + in-flight 2"
    assert "what was dropped or lost had 3.00 x the length of what was trained" in told.out
    assert "prompts asked, and never trained on: 1 (sums/g2)" in told.out
    assert "every rollout has one fate" in told.out


def test_reasons_stand_in_the_table_with_their_lengths(tmp_path, capsys):
    out = tether(capsys, "ledger", make_books(tmp_path / "run")).out
    (row,) = [line.split() for line in out.splitlines() if line.startswith("filtered:flat-group")]
    assert row == ["filtered:flat-group", "1", "25.0%", "12", "50.0%", "12.0", "12", "12", "3.00", "x"]


def test_books_that_do_not_close_are_exit_code_1_with_a_plain_message(tmp_path, capsys):
    folder = make_books(tmp_path / "run")
    edit(folder, "ledger.jsonl", lambda lines: lines[:-1])
    told = tether(capsys, "ledger", folder)
    assert told.code == 1
    assert "the books do not close: 1 of 4 rollouts admitted have no fate, though the run is over." in told.out


def test_a_line_that_cannot_be_read_is_exit_code_1(tmp_path, capsys):
    folder = make_books(tmp_path / "run")
    edit(folder, "ledger.jsonl", lambda lines: [b'{"schema":1,"id":"g0/0"}\n', *lines])
    told = tether(capsys, "ledger", folder)
    assert told.code == 1
    assert "line 1 of" in told.err


def test_a_killed_run_says_how_to_go_on(tmp_path, capsys):
    told = tether(capsys, "ledger", make_books(tmp_path / "run", late=1, end=""))
    assert told.code == 1
    assert told.out.startswith("admitted 6 = trained 3 + filtered 1 + open 2")
    assert "Resume it: tether train --resume" in told.out


def test_a_run_that_is_being_written_is_said_to_be(tmp_path, capsys):
    folder = make_books(tmp_path / "run", late=1, end="")
    with RunWriter.reopen(folder):
        told = tether(capsys, "ledger", folder)
    assert told.code == 0
    assert "a process is writing this run" in told.out


@pytest.mark.parametrize("late", [0, 1])
def test_json_holds_the_same(tmp_path, capsys, late):
    told = tether(capsys, "ledger", make_books(tmp_path / "run", late=late), "--json")
    plain = json.loads(told.out)
    assert plain["closes"] is True
    assert plain["admitted"] == 4 + 2 * late == sum(fate["rollouts"] for fate in plain["fates"].values())
    assert plain["fates"]["filtered:flat-group"]["lengths"] == {"count": 1, "mean": 12.0, "p50": 12.0, "p90": 12.0}


@pytest.mark.parametrize("name", ["ledger", "trace"])
def test_looking_at_a_run_needs_no_torch(tmp_path, name):
    folder = make_books(tmp_path / "run")
    code = (
        "import sys; from tether.cli import app; "
        f"app.cli.main(['{name}', {str(folder)!r}], standalone_mode=False); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
