import pytest

from tether.errors import LedgerError
from tether.journal import Ledger
from tether.pipeline.books import check_balance


def ledger_of(closed: int, opened: int = 0) -> Ledger:
    ledger = Ledger(lambda line: None)
    for number in range(closed + opened):
        ledger.admit(f"r{number}", "p", "g")
    for number in range(closed):
        ledger.close(f"r{number}", "trained")
    return ledger


def test_books_that_close_say_nothing():
    check_balance(ledger_of(3), 3)
    check_balance(ledger_of(0), 0)


def test_a_rollout_without_a_fate_is_named():
    with pytest.raises(LedgerError, match=r"4 have none when the run is over \(r2, r3, r4, \.\.\.\)"):
        check_balance(ledger_of(2, opened=4), 6)


@pytest.mark.parametrize(("admitted", "what"), [(4, "lost"), (2, "counted twice")])
def test_another_count_than_was_admitted_is_a_fault(admitted, what):
    with pytest.raises(
        LedgerError, match=rf"{admitted} were admitted, .* closed 3 \(trained 3\): rollouts were {what}"
    ):
        check_balance(ledger_of(3), admitted)


def test_what_was_admitted_before_a_checkpoint_counts():
    before, after = ledger_of(2, opened=1), Ledger(lambda line: None)
    closed = [before.close("r2", "unused")]
    after.restore(closed, ledger_of(0, opened=2).open_lines)
    assert after.num_admitted == 3
