"""The audit: what several modes said of the same pairs, held against each other."""

from __future__ import annotations

import pytest

from tether.verifier.audit import agreement, disagreements
from tether.verifier.verdict import Status, Verdict


def said(*statuses: Status) -> list[Verdict]:
    return [Verdict(status=status, extracted=None, stage="") for status in statuses]


def test_a_disagreement_names_its_pair_and_what_each_mode_said():
    verdicts = {
        "robust": said("correct", "wrong"),
        "upstream": said("correct", "correct"),
        "strict-int": said(*2 * ["wrong"]),
    }
    found = disagreements(verdicts)
    assert [one.index for one in found] == [0, 1]
    assert {mode: verdict.status for mode, verdict in found[1].by_mode.items()} == {
        "robust": "wrong",
        "upstream": "correct",
        "strict-int": "wrong",
    }


def test_two_ways_of_being_not_right_are_no_disagreement():
    verdicts = {"robust": said("timeout", "no_answer", "too_large"), "upstream": said("wrong", "parse_error", "wrong")}
    assert disagreements(verdicts) == []
    assert agreement(verdicts) == {("robust", "upstream"): 1.0}


def test_agreement_is_a_share_for_each_two_modes():
    verdicts = {
        "robust": said("correct", "wrong", "correct", "wrong"),
        "upstream": said("correct", "correct", "correct", "wrong"),
        "strict-int": said("wrong", "wrong", "wrong", "wrong"),
    }
    assert agreement(verdicts) == {
        ("robust", "upstream"): 0.75,
        ("robust", "strict-int"): 0.5,
        ("upstream", "strict-int"): 0.25,
    }


def test_one_mode_has_nobody_to_disagree_with():
    assert disagreements({"robust": said("correct")}) == []
    assert agreement({"robust": said("correct")}) == {}


def test_no_pairs_are_no_disagreement():
    assert disagreements({}) == []
    assert agreement({"robust": [], "upstream": []}) == {("robust", "upstream"): 1.0}


def test_modes_that_judged_different_numbers_of_pairs_are_refused():
    with pytest.raises(ValueError, match="robust 2, upstream 1"):
        disagreements({"robust": said("correct", "wrong"), "upstream": said("correct")})
