"""Edge cases of group advantages: flat groups, groups of one, scale."""

from __future__ import annotations

import pytest
import torch

from tether.core.advantage import GRPO, RLOO, DrGRPO, is_flat
from tether.registry import ADVANTAGES

everyone = pytest.mark.parametrize("estimator", [cls() for _, cls in ADVANTAGES.items()], ids=ADVANTAGES.names())


def rewards(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@everyone
@pytest.mark.parametrize(
    "group",
    [[0.9] * 16, [0.1] * 3, [1.0, 1.0, 1.0 + 1e-9], [0.0] * 4, [1e6, 1e6 + 1e-3], [-0.9] * 16],
    ids=["16 x .9", "3 x .1", "1 + 1e-9", "zeros", "large", "negative"],
)
def test_a_flat_group_gets_exactly_zero(estimator, group):
    assert is_flat(rewards(*group))
    assert estimator(rewards(*group)).tolist() == [0.0] * len(group)


def test_float32_would_give_a_flat_group_credit():
    """Why the arithmetic is float64 and flatness is tested: rounding alone would train on nothing."""
    flat = torch.full((16,), 0.9)
    assert ((flat - flat.mean()) / (flat.std() + 1e-6)).abs().max() > 0.05


@everyone
def test_a_small_difference_is_not_flat(estimator):
    got = estimator(rewards(1.0, 1.0, 1.001))
    assert got[2] > 0 > got[0]


@everyone
@pytest.mark.parametrize("group", [[1.0, 0.0], [0.3, 0.7, 0.2, 0.9], [5.0, -5.0, 0.0]])
def test_advantages_sum_to_zero_and_keep_the_order(estimator, group):
    got = estimator(rewards(*group))
    assert float(got.sum()) == pytest.approx(0.0, abs=1e-12)
    assert got.argsort().equal(rewards(*group).argsort())


@everyone
def test_order_of_responses_does_not_matter(estimator):
    group, order = rewards(0.1, 0.7, 0.4, 0.9), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(estimator(group[order]), estimator(group)[order])


@everyone
def test_a_group_of_one_is_left_out_by_default(estimator):
    assert estimator.single == "drop"
    assert estimator(rewards(1.0)) is None


def test_a_group_of_one_as_asked():
    assert GRPO(single="raw")(rewards(2.0)).tolist() == pytest.approx([2.0 / (1 + 1e-6)])
    assert DrGRPO(single="raw")(rewards(2.0)).tolist() == [2.0]
    for estimator in (GRPO(single="zero"), DrGRPO(single="zero"), RLOO(single="zero")):
        assert estimator(rewards(2.0)).tolist() == [0.0]


def test_rloo_is_reward_minus_the_mean_of_the_others():
    group = rewards(0.3, 0.9, 0.1)
    wanted = [0.3 - 0.5, 0.9 - 0.2, 0.1 - 0.6]
    assert RLOO()(group).tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("ddof", [0, 1])
def test_grpo_divides_by_the_chosen_deviation(ddof):
    group = rewards(0.3, 0.9, 0.1, 0.5)
    got = GRPO(ddof=ddof)(group)
    assert float(got.std(correction=ddof)) == pytest.approx(1.0, rel=1e-5)
