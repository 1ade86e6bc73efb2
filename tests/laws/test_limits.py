"""Limits: with every radius and cap open, rules and weights give back the plain importance-weighted gradient."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from tether.core.ratio import edge_log_ratio
from tether.core.rule import Rule
from tether.core.statistics import AbsoluteQuantile
from tether.core.tokens import TokenBatch, per_sequence_sum, response_length
from tether.registry import CORRECTIONS, RULES
from tether.scales.quantile import Quantile

from .batches import (
    LEVELS,
    algorithm_of,
    algorithm_with,
    batches,
    every_correction,
    every_rule,
    levels,
    terms_and_gradient,
)

few = settings(max_examples=15)


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


OPEN_RULES: dict[str, Rule] = {
    "cispo": RULES.build("cispo", epsilon_high=1e9),
    "dis": RULES.build("dis", epsilon_low=1.0, epsilon_high=1e9),
    "dppo": RULES.build("dppo", delta_low=1.0, delta_high=1.0, cap=1e9),
    "drpo": RULES.build("drpo", delta=1e9),
    "m2po": RULES.build("m2po", budget=400.0),
    "topr": RULES.build("topr"),
    "aspo": RULES.build("aspo", epsilon_low=1.0, epsilon_high=1e9, cap=1e9),
    "sapo": RULES.build("sapo", tau_positive=1e-7, tau_negative=1e-7),
    "vespo": RULES.build("vespo", k_positive=1.0, rate_positive=0.0, k_negative=1.0, rate_negative=0.0),
    "gmpo": RULES.build("gmpo", log_clip=20.0),
    "bapo": RULES.build("bapo", low=(0.0, 0.0), high=(1e9, 1e9), dual_clip=None),
    "gepo": RULES.build("gepo"),
    "ppo": RULES.build("ppo", epsilon_low=1.0, epsilon_high=1e9),
    "sat": RULES.build("sat", epsilon_low=1.0, epsilon_high=1e9, scale=Quantile(level=1.0)),
    "spo": RULES.build("spo", epsilon=1e9, ratio_cap=1e9),
    "tis-reinforce": RULES.build("tis-reinforce", cap=1e9),
    "up": RULES.build("up", epsilon_low=1.0, dual_clip=None),
    "adaptive-radius": RULES.build("adaptive-radius", epsilon_low=1.0, epsilon_high=1e9, scale=Quantile(level=1.0)),
    "sat-edge": RULES.build("sat-edge", epsilon_low=1.0, epsilon_high=1e9, scale=Quantile(level=1.0)),
}
"""Every rule with its options at the end where nothing is cut; a new rule names its own."""

OPEN_CORRECTIONS: dict[str, dict[str, float]] = {
    "decoupled": {"cap": 1e18},
    "estr": {"threshold": 1e9},
    "icepop": {"alpha": 0.0, "beta": 1e9},
    "kpop": {"phi": 1e9},
    "m2po-elimination": {"budget": 400.0},
    "opsm": {"delta": 1e9},
    "seqclip": {"alpha": 0.0, "beta": 1e9},
    "tis": {"cap": 1e6},
    "trm": {"delta": 1e9},
}
OPEN = {name: CORRECTIONS.build(name, **options) for name, options in OPEN_CORRECTIONS.items()}
WEIGHTS = [name for name, correction in OPEN.items() if not correction.traits.is_mask]
MASKS = [name for name, correction in OPEN.items() if correction.traits.is_mask]


def against_the_group(ratio: Tensor, logp: Tensor, tokens: TokenBatch) -> Tensor:
    """``pi(y) / E`` of GEPO, group by group."""
    now, then = (per_sequence_sum(x.double(), tokens) for x in (logp, tokens.logp_behavior))
    weight = torch.ones_like(now)
    for group in tokens.group[tokens.trainable].unique():
        own = tokens.trainable & (tokens.group == group)
        mu = torch.stack([then[own & (tokens.sequence == b)][0] for b in tokens.sequence[own].unique()])
        weight[own] = (now[own] - (2 * mu).logsumexp(0) + mu.logsumexp(0)).clamp(-20, 20).exp()
    return weight.float()


OWN_LIMITS: dict[str, Callable[[Tensor, Tensor, TokenBatch], Tensor]] = {
    "up": lambda ratio, logp, tokens: torch.where(tokens.advantage > 0, 1.0, ratio),
    "topr": lambda ratio, logp, tokens: torch.where(tokens.advantage > 0, 1.0, ratio.clamp(max=1.0)),
    "aspo": lambda ratio, logp, tokens: torch.where(tokens.advantage > 0, 1.0 / ratio, ratio),
    "gmpo": lambda ratio, logp, tokens: (per_sequence_sum(ratio.log(), tokens) / response_length(tokens)).exp(),
    "gepo": against_the_group,
}
"""Rules whose coefficient of ``A grad logp`` is by definition not the ratio even then, and what it is."""


def test_every_rule_and_correction_names_its_open_limit():
    assert set(OPEN_RULES) == {name for name, _ in every_rule()}
    assert set(OPEN_CORRECTIONS) == {name for name, _ in every_correction()}


PLACES = [(name, level) for name, rule in OPEN_RULES.items() for level in levels(rule)]


@pytest.mark.parametrize(("name", "level"), PLACES)
@given(drawn=batches())
@few
def test_a_rule_whose_radii_grow_recovers_the_importance_weighted_gradient(name, level, drawn):
    tokens, logp = drawn
    _, gradient = terms_and_gradient(drawn, algorithm_of(OPEN_RULES[name], level=level))
    quiet = tokens.neutralized()
    own = torch.where(tokens.trainable, logp, 0.0)
    ratio = edge_log_ratio("total", own, quiet, level).exp()
    coefficient = OWN_LIMITS[name](ratio, own, quiet) if name in OWN_LIMITS else ratio
    assert_close(gradient, -quiet.advantage * coefficient)


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("level", LEVELS)
@given(drawn=batches(spread=0.5))
@few
def test_an_open_weight_completes_the_ratio_to_the_behavior(name, level, drawn):
    """``weight x clipped``: ``pi / behavior`` where both are at one level; a weight's own level is its own choice."""
    tokens, logp = drawn
    _, gradient = terms_and_gradient(drawn, algorithm_of(OPEN_RULES["ppo"], level=level, corrections=(OPEN[name],)))
    quiet, current = tokens.neutralized(), torch.where(tokens.trainable, logp, 0.0)
    edge, own_level = OPEN[name].traits.ratio(level)
    if own_level == level:
        ratio = edge_log_ratio("total", current, quiet, level).exp()
    else:
        parts = edge_log_ratio(edge, current, quiet, own_level), edge_log_ratio("clipped", current, quiet, level)
        ratio = sum(parts).exp()
    assert_close(gradient, -quiet.advantage * ratio)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("level", LEVELS)
@given(drawn=batches())
@few
def test_an_open_mask_changes_nothing_to_the_last_bit(name, level, drawn):
    masked = algorithm_with(OPEN[name], OPEN_RULES["ppo"], level)
    bare = dataclasses.replace(masked, corrections=masked.corrections[:-1])
    assert terms_and_gradient(drawn, masked)[1].equal(terms_and_gradient(drawn, bare)[1])


def test_the_gate_of_sat_reads_the_statistic_it_was_given():
    assert OPEN_RULES["sat"].traits.needs == (AbsoluteQuantile(1.0),)
