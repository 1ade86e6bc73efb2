"""The prime_math cases: what upstream pays for, and what AIME does."""

from __future__ import annotations

import pytest

from tether.verifier.strict_int import judge_strict_int
from tether.verifier.upstream import judge_upstream

from .tables import rows

CASES = rows("prime_math cases")


@pytest.mark.parametrize("row", CASES, ids=lambda row: f"{row['output']} for {row['reference']}")
def test_upstream_scores_as_prime_math_does(row):
    assert judge_upstream(row["output"], row["reference"]).is_correct == bool(row["upstream"])


@pytest.mark.parametrize("row", CASES, ids=lambda row: f"{row['output']} for {row['reference']}")
def test_strict_int_asks_for_one_integer_and_says_where_the_reference_is_none(row):
    verdict = judge_strict_int(row["output"], row["reference"])
    if row["strict_int"] is None:
        assert (verdict.status, verdict.stage) == ("parse_error", "reference:not-an-integer")
    else:
        assert verdict.is_correct == bool(row["strict_int"])
        assert verdict.status != "parse_error"
