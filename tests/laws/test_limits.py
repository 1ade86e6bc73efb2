"""Limits: with every radius and cap open, rules and weights give back the plain importance-weighted gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tether.core.ratio import edge_log_ratio
from tether.core.rule import Rule
from tether.core.statistics import AbsoluteQuantile
from tether.registry import CORRECTIONS, RULES
from tether.scales.quantile import Quantile

from .batches import LEVELS, algorithm_of, batches, every_correction, every_rule, terms_and_gradient

few = settings(max_examples=15)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


OPEN_RULES: dict[str, Rule] = {
    "ppo": RULES.build("ppo", epsilon_low=1.0, epsilon_high=1e9),
    "sat": RULES.build("sat", epsilon_low=1.0, epsilon_high=1e9, scale=Quantile(level=1.0)),
}
"""Every rule with its options at the end where nothing is cut; a new rule names its own."""

OPEN_CORRECTIONS: dict[str, dict[str, float]] = {"tis": {"cap": 1e6}}


def test_every_rule_and_correction_names_its_open_limit():
    assert set(OPEN_RULES) == {name for name, _ in every_rule()}
    assert set(OPEN_CORRECTIONS) == {name for name, _ in every_correction()}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", OPEN_RULES)
@given(drawn=batches())
@few
def test_a_rule_whose_radii_grow_recovers_the_importance_weighted_gradient(name, level, drawn):
    tokens, logp = drawn
    _, gradient = terms_and_gradient(drawn, algorithm_of(OPEN_RULES[name], level=level))
    quiet = tokens.neutralized()
    ratio = edge_log_ratio("total", torch.where(tokens.trainable, logp, 0.0), quiet, level).exp()
    assert_close(gradient, -quiet.advantage * ratio)


@pytest.mark.parametrize("name", OPEN_CORRECTIONS)
@pytest.mark.parametrize("level", LEVELS)
@given(drawn=batches(spread=0.5))
@few
def test_an_open_weight_completes_the_ratio_to_the_behavior(name, level, drawn):
    tokens, logp = drawn
    correction = CORRECTIONS.build(name, **OPEN_CORRECTIONS[name])
    _, gradient = terms_and_gradient(drawn, algorithm_of(OPEN_RULES["ppo"], level=level, corrections=(correction,)))
    quiet = tokens.neutralized()
    ratio = edge_log_ratio("total", torch.where(tokens.trainable, logp, 0.0), quiet, level).exp()
    assert_close(gradient, -quiet.advantage * ratio)


def test_the_gate_of_sat_reads_the_statistic_it_was_given():
    assert OPEN_RULES["sat"].traits.needs == (AbsoluteQuantile(1.0),)
