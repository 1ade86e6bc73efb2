import json

import pytest

from tether.journal import RunView
from tether.journal.balance import Balance, Lengths
from tether.journal.schema import INTERRUPTED

from .books import edit, make_books

BLANK = ("sampled_s", "num_versions", "cached_version", "num_restarts")
"""Of a ledger line, what older runs do not have."""


def balance_of(folder, **more) -> Balance:
    return Balance(RunView(folder), **more)


def test_books_close_when_admitted_is_the_sum_of_the_fates(tmp_path):
    balance = balance_of(make_books(tmp_path / "run", late=1))
    assert balance.faults == ()
    assert (balance.admitted, balance.open) == (6, 0)
    assert {fate.fate: fate.rollouts for fate in balance.fates} == {
        "trained": 3, "filtered:flat-group": 1, "in-flight": 2,
    }  # fmt: skip
    assert sum(fate.share for fate in balance.fates) == pytest.approx(1.0)
    assert sum(fate.token_share for fate in balance.fates) == pytest.approx(1.0)


def test_lengths_are_compared_with_what_was_trained(tmp_path):
    balance = balance_of(make_books(tmp_path / "run", late=1))
    trained, filtered, flight = balance.fates
    assert trained.lengths == Lengths(count=3, mean=4.0, p50=4.0, p90=4.0)
    assert filtered.to_trained == 3.0
    assert flight.lengths is None  # nothing is known of what it sampled
    assert balance.dropped == Lengths(count=1, mean=12.0, p50=12.0, p90=12.0)


def test_prompts_of_which_nothing_was_trained_are_named(tmp_path):
    folder = make_books(tmp_path / "run", [("filtered:x", "failed:reward"), ("trained", "trained")])
    assert balance_of(folder).unused_prompts == ("sums/g0",)


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_a_rollout_without_a_line_is_missed_once_the_run_is_over(tmp_path, end):
    folder = make_books(tmp_path / "run", end=end)
    edit(folder, "ledger.jsonl", lambda lines: lines[:-1])  # the filtered one, which no sample and no step names
    faults = balance_of(folder).faults
    assert "1 of 4 rollouts admitted have no fate, though the run is over." in faults
    assert any("the ledger has trained 3: lines are missing" in fault for fault in faults)
    assert "1 group has less than the 2 rollouts that a group has: g1." in faults


def test_a_lost_line_is_noticed_in_runs_that_do_not_tell_how_many_were_admitted(tmp_path):
    folder = make_books(tmp_path / "run", tells_admitted=False)
    assert balance_of(folder).faults == ()
    edit(folder, "ledger.jsonl", lambda lines: lines[:-1])
    assert balance_of(folder).faults


def test_an_id_twice_is_a_fault_in_any_run(tmp_path):
    for end in ("finish", ""):
        folder = make_books(tmp_path / f"run-{end}", end=end)
        edit(folder, "ledger.jsonl", lambda lines: [*lines, lines[0]])
        balance = balance_of(folder, is_written=not end)
        assert balance.duplicates == ("g0/0",)
        assert "1 rollout has more than one fate: g0/0." in balance.faults


def test_a_stored_sample_proves_that_its_rollout_was_there(tmp_path):
    folder = make_books(tmp_path / "run", end="", tells_admitted=False)
    edit(folder, "ledger.jsonl", lambda lines: lines[1:])
    faults = balance_of(folder, is_written=True).faults
    assert "1 stored sample has no line in the ledger: g0/0." in faults


def test_a_step_proves_how_many_were_trained_in_it(tmp_path):
    folder = make_books(tmp_path / "run", end="")
    edit(folder, "ledger.jsonl", lambda lines: [lines[0], lines[1].replace(b'"trained"', b'"unused"'), *lines[2:]])
    assert balance_of(folder, is_written=True).faults == (
        "Step 1 trained 2 rollouts, and the ledger has 1 that were trained in it.",
    )


def test_lines_of_the_step_under_way_come_before_it(tmp_path):
    folder = make_books(tmp_path / "run", end="")
    edit(folder, "events.jsonl", lambda lines: lines[:-1])
    assert balance_of(folder, is_written=True).faults == ()


def test_a_killed_run_has_open_rollouts_and_is_to_be_resumed(tmp_path):
    folder = make_books(tmp_path / "run", late=2, end="")
    balance = balance_of(folder)
    assert (balance.admitted, balance.open) == (8, 4)
    (fault,) = balance.faults
    assert "4 rollouts are without a fate. Resume it: tether train --resume" in fault
    assert balance_of(folder, is_written=True).faults == ()


def test_the_torn_line_of_a_killed_run_is_no_fault_of_its_own(tmp_path):
    folder = make_books(tmp_path / "run", end="")
    edit(folder, "ledger.jsonl", lambda lines: [*lines, b'{"schema":1,"id":"g'])
    assert len(balance_of(folder).faults) == 1
    assert balance_of(folder, is_written=True).faults == ()


def test_a_torn_line_in_a_run_that_is_over_is_a_fault(tmp_path):
    folder = make_books(tmp_path / "run")
    edit(folder, "ledger.jsonl", lambda lines: [*lines[:-1], lines[-1][:20]])
    assert any("ledger.jsonl was cut off" in fault for fault in balance_of(folder).faults)


def test_a_stopped_run_closes_its_books(tmp_path):
    assert balance_of(make_books(tmp_path / "run", late=1, end="fail", note=INTERRUPTED)).faults == ()


def test_ledgers_of_older_runs_still_read(tmp_path):
    folder = make_books(tmp_path / "run", tells_admitted=False)

    def older(lines):
        for line in lines:
            yield json.dumps({k: v for k, v in json.loads(line).items() if k not in BLANK}).encode() + b"\n"

    edit(folder, "ledger.jsonl", older)
    balance = balance_of(folder)
    assert balance.faults == ()
    assert balance.lines[0].num_versions is None
    assert balance.fates[0].lengths == Lengths(count=3, mean=4.0, p50=4.0, p90=4.0)


def test_a_run_that_admitted_nothing_closes(tmp_path):
    balance = balance_of(make_books(tmp_path / "run", []))
    assert (balance.admitted, balance.fates, balance.faults) == (0, (), ())
