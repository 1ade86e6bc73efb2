"""A recipe whose factors do not multiply to pi/behavior is refused before the run, with the reason."""

from __future__ import annotations

import pytest

from tests.golden.tables import Given
from tether.core.advantage import GRPO
from tether.core.aggregation import TokenMean
from tether.core.algorithm import Algorithm
from tether.corrections.tis import TIS
from tether.errors import ConfigError
from tether.proximal.anchor import AnchorProximal
from tether.proximal.rollout import RolloutProximal
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

MASK = Given((1.0,), is_mask=True)
WEIGHT = Given((1.0,), is_mask=False)


def compose(proximal, *corrections, rule=None) -> Algorithm:
    return Algorithm(
        proximal=proximal,
        level="token",
        rule=rule or PPO(),
        corrections=corrections,
        aggregation=TokenMean(),
        advantage=GRPO(),
    )


@pytest.mark.parametrize("rule", [PPO(), SAT()], ids=["ppo", "sat"])
@pytest.mark.parametrize(
    ("proximal", "corrections"),
    [
        (RolloutProximal(), ()),
        (RolloutProximal(), (MASK,)),
        (AnchorProximal(), (TIS(),)),
        (AnchorProximal(), (TIS(), MASK)),
    ],
    ids=["rollout", "rollout x mask", "anchor x tis", "anchor x tis x mask"],
)
def test_recipes_that_multiply_to_pi_over_behavior(rule, proximal, corrections):
    assert compose(proximal, *corrections, rule=rule).corrections == corrections


@pytest.mark.parametrize("rule", [PPO(), SAT()], ids=["ppo", "sat"])
def test_a_weight_beside_a_complete_ratio_is_refused(rule):
    with pytest.raises(
        ConfigError,
        match="already gives the ratio pi/behavior, so tis would correct it a second time, by a ratio that is "
        "always 1; use proximal = 'anchor' or 'old' with it",
    ):
        compose(RolloutProximal(), TIS(), rule=rule)


@pytest.mark.parametrize("corrections", [(), (MASK,)], ids=["bare", "a mask is no weight"])
def test_an_anchor_without_a_weight_is_refused(corrections):
    with pytest.raises(
        ConfigError,
        match=r"weights the gradient by pi / anchor instead of pi / behavior; with proximal 'anchor' the ratio "
        r"cannot see how stale the data are: add a correction that reads the edge 'weight' \(such as tis\), or use",
    ):
        compose(AnchorProximal(), *corrections)


def test_two_weights_on_one_edge_are_refused():
    with pytest.raises(ConfigError, match=r"pi anchor / behavior\^2 instead of pi / behavior"):
        compose(AnchorProximal(), TIS(), WEIGHT)
    with pytest.raises(ConfigError, match="takes each correction once; got tis twice"):
        compose(AnchorProximal(), TIS(), TIS(cap=5.0))


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_truncates_nothing_is_refused(cap):
    with pytest.raises(ValueError, match=r"cap of tis must lie in \(0, 1e6\] \(2 is usual\); got"):
        TIS(cap=cap)
