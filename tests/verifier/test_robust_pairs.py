"""The mode ``robust`` on the pairs of the log, and on others of each of their kinds."""

from __future__ import annotations

import dataclasses

import pytest

from tether.verifier.policies import Policies
from tether.verifier.robust import judge_robust

from .a15 import PAIRS, Pair


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_each_pair_of_the_log_gets_the_right_verdict(pair: Pair) -> None:
    assert judge_robust(pair.prediction, pair.gold).is_correct is pair.is_right


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.policy], ids=lambda pair: pair.id)
def test_a_pair_on_which_users_disagree_is_decided_by_a_named_policy(pair: Pair) -> None:
    by_default = judge_robust(pair.prediction, pair.gold)
    turned = dataclasses.replace(Policies(), **{pair.policy: pair.other})
    other = judge_robust(pair.prediction, pair.gold, turned)
    assert other.is_correct is not by_default.is_correct
    assert pair.policy in (by_default.policy, other.policy)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.id)
def test_each_text_of_the_log_equals_itself(pair: Pair) -> None:
    assert judge_robust(pair.gold, pair.gold).is_correct
