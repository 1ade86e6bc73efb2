"""Every method gives the other library's numbers, or differs for the reason that is documented and no other."""

from __future__ import annotations

import pytest

from parity.case import TOLERANCE, VISIBLE, Case
from parity.cases import CASES
from parity.methods.advantage import CREDITS, Credit
from parity.report import PAGE, page


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_loss_and_gradient_are_the_others_or_differ_for_the_documented_cause(case: Case) -> None:
    plain, modelled = case.gaps
    if modelled is None:
        assert plain.most < TOLERANCE
    else:
        assert plain.most > VISIBLE
        assert modelled.most < TOLERANCE


@pytest.mark.parametrize("credit", CREDITS, ids=lambda credit: f"{credit.peer}-{credit.settings}-{credit.method}")
def test_advantages_are_the_others_or_differ_for_the_documented_cause(credit: Credit) -> None:
    plain, modelled = credit.gaps
    if modelled is None:
        assert plain < TOLERANCE
    else:
        assert plain > VISIBLE
        assert modelled < TOLERANCE


def test_every_difference_has_a_cause() -> None:
    assert all(credit.cause for credit in CREDITS if credit.explained is not None)
    assert all(credit.explained for credit in CREDITS if credit.cause)


def test_the_page_is_what_the_command_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/parity.md is not up to date: make parity"
