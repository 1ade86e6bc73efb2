"""What every scale promises, and what sets each of them apart."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from tests.core.heavy import applied, log_ratios, measured, tokens_at
from tests.laws.batches import built
from tether.core.advantage import GRPO
from tether.core.aggregation import TokenSum
from tether.core.algorithm import Algorithm
from tether.core.examples import tokens_of
from tether.core.loss import measure_scope
from tether.core.memory import EdgeStatistics, Memory, Smoothed
from tether.core.ratio import Ratio
from tether.core.rule import Scale
from tether.core.statistics import AbsoluteQuantile, Statistics, measure
from tether.core.tokens import TokenBatch
from tether.errors import ConfigError
from tether.proximal.rollout import RolloutProximal
from tether.registry import SCALES
from tether.rules.sat import SAT
from tether.scales.absolute import Absolute
from tether.scales.bounded import Bounded
from tether.scales.ema import Average
from tether.scales.per_staleness import PerStaleness
from tether.scales.per_turn import PerTurn
from tether.scales.quantile import Quantile

everyone = pytest.mark.parametrize("name", SCALES.names())
RELATIVE = {"quantile": True, "ema": True, "per-turn": True, "per-staleness": True, "absolute": False, "bounded": False}


def batch(size: int = 900, scale: float = 0.05) -> tuple[TokenBatch, Tensor]:
    tokens, d = tokens_at(log_ratios("laplace", size, scale=scale, seed=0), seed=1)
    noise = torch.Generator().manual_seed(2)
    drawn = {name: torch.randint(0, 20, (size,), generator=noise) for name in ("turn", "staleness")}
    return dataclasses.replace(tokens, **drawn), d


def scope(rule: SAT, tokens: TokenBatch, d: Tensor) -> EdgeStatistics:
    return measure_scope(recipe(rule), [(d.detach(), tokens)])


def recipe(rule: SAT, **choices) -> Algorithm:
    kept = {"proximal": RolloutProximal(), "level": "token", "aggregation": TokenSum(), "advantage": GRPO(), **choices}
    return Algorithm(rule=rule, **kept)


# --- every scale ------------------------------------------------------------------------------------------------------


@everyone
def test_q_is_one_for_all_or_one_a_token_detached_and_named_in_the_log(name):
    scale: Scale = built(SCALES, name)
    tokens, d = batch()
    stats = measure([(d.detach(), tokens)], scale.needs)
    attached = Statistics({key: x.clone().requires_grad_() for key, x in stats.values.items()})
    q = scale(tokens, attached)
    assert q.shape == ((len(tokens),) if scale.is_per_token else ())
    assert not q.requires_grad
    assert (q > 0).all()
    readings = scale.readings(stats)
    if scale.is_per_token:
        assert all(key.startswith("sat/q/") for key in readings)
        assert {torch.tensor(x).item() for x in readings.values()} >= set(q.tolist())
    else:
        assert readings == {"sat/q": pytest.approx(q.item())}


@everyone
def test_nothing_waits_for_the_device(name):
    """Tensors without values: whatever asked for one would raise."""
    scale: Scale = built(SCALES, name)
    tokens, d = batch(20)
    fields = {f.name: getattr(tokens, f.name) for f in dataclasses.fields(tokens)}
    empty = TokenBatch(**{key: None if x is None else x.to("meta") for key, x in fields.items()})
    stats = measure([(d.detach().to("meta"), empty)] * 2, scale.needs)
    assert scale(empty, stats).device.type == "meta"


@everyone
def test_a_scope_without_tokens_gates_nothing_unless_q_is_a_number(name):
    scale: Scale = built(SCALES, name)
    tokens, d = batch()
    nobody = dataclasses.replace(tokens, trainable=torch.zeros(len(tokens), dtype=torch.bool))
    q = scale(tokens, measure([(d.detach(), nobody)], scale.needs))
    assert (q == 0).all() or name == "absolute"


@everyone
def test_contraction_stays_when_all_log_ratios_are_scaled_only_where_q_is_relative(name):
    sat = SAT(scale=built(SCALES, name))
    tokens, d = batch()
    gates, contractions = [], []
    for factor in (1.0, 4.0):
        marks = applied(sat, tokens, factor * d.detach())[0].marks
        gates.append(marks["sat/gate_fraction"].value)
        contractions.append(marks["sat/mean_contraction"].value[gates[0]])
    assert contractions[1].equal(contractions[0]) == RELATIVE[name]
    assert gates[1].equal(gates[0]) == RELATIVE[name]
    assert (gates[1] | ~gates[0]).all()


def test_every_scale_says_whether_it_is_relative():
    assert set(RELATIVE) == set(SCALES.names())


# --- bins -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [PerTurn(most_turns=1), PerStaleness(edges=())], ids=["per-turn", "per-staleness"])
def test_one_bin_is_sat_with_the_plain_quantile_to_the_last_bit(scale):
    tokens, d = batch()
    (out, gradient), (wanted, wanted_gradient) = (applied(SAT(scale=one), tokens, d) for one in (scale, Quantile()))
    assert out.objective.equal(wanted.objective)
    assert gradient.equal(wanted_gradient)
    assert out.marks["sat/newly_cut_fraction"].value.any()


@pytest.mark.parametrize(("scale", "field"), [(PerTurn(), "turn"), (PerStaleness(), "staleness")])
def test_every_bin_is_gated_as_if_it_were_alone(scale, field):
    """Bins whose mismatch differs a hundredfold: each gates its own tenth, where one q for all gates the last alone."""
    tokens, d = batch()
    place = getattr(tokens, field)
    spread = d.detach() * torch.where(place < 3, 0.01, 1.0)
    gate = applied(SAT(scale=scale), tokens, spread)[0].marks["sat/gate_fraction"].value
    plain = applied(SAT(), tokens, spread)[0].marks["sat/gate_fraction"].value
    assert not plain[place < 3].any()
    for value in (0, 1):
        here = place == value
        assert int(gate[here].sum()) == int(here.sum()) // 10
    assert int(gate.sum()) <= len(tokens) // 10


def test_later_turns_share_the_last_q():
    tokens, d = batch()
    scale = PerTurn(most_turns=3)
    q = scale(tokens, measured(SAT(scale=scale), tokens, d))
    late = tokens.turn >= 2
    assert len(q[late].unique()) == 1
    assert len(q.unique()) == 3


def test_a_bin_with_fewer_than_ten_tokens_is_never_gated():
    tokens, d = tokens_of(log_ratio=[0.01] * 40 + [0.1 * i for i in range(1, 10)], advantage=[1.0] * 49)
    tokens = dataclasses.replace(tokens, staleness=torch.tensor([0] * 40 + [5] * 9))
    assert not applied(SAT(scale=PerStaleness()), tokens, d)[0].marks["sat/gate_fraction"].value.any()


def test_readings_name_the_bins():
    tokens, d = batch()
    for scale, names in (
        (PerStaleness(), ["0", "1", "2-3", "4-7", "8-15", "16+"]),
        (PerTurn(most_turns=2), ["0", "1+"]),
    ):
        readings = SAT(scale=scale).readings(measured(SAT(scale=scale), tokens, d))
        assert list(readings) == [f"sat/q/{name}" for name in names]


def test_turns_are_asked_for():
    assert SAT(scale=PerTurn()).traits.inputs == ("turn",)
    assert SAT(scale=PerStaleness()).traits.inputs == ()


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quantile", "q"), [(0.05, 0.05), (0.001, 0.01), (0.5, 0.1), (0.0, 0.0), (0.01, 0.01), (0.1, 0.1)]
)
def test_bounds_hold_q_and_zero_still_gates_nothing(quantile, q):
    stats = Statistics({AbsoluteQuantile(0.9): torch.tensor(quantile)})
    scale = Bounded(floor=0.01, ceiling=0.1)
    assert scale(batch()[0], stats).item() == pytest.approx(q)
    assert scale.readings(stats)["sat/q"] == pytest.approx(q)


def test_a_floor_gates_no_token_that_the_quantile_leaves():
    for factor in (0.0, 0.01, 0.2, 1.0):
        tokens, d = batch()
        gates = [
            applied(SAT(scale=scale), tokens, factor * d.detach())[0].marks["sat/gate_fraction"].value
            for scale in (Bounded(floor=0.05, ceiling=20.0), Quantile())
        ]
        assert not (gates[0] & ~gates[1]).any()


def test_a_ceiling_cuts_more_as_all_mismatch_grows_where_the_quantile_stops():
    tokens, d = batch(scale=0.5)
    cut = [
        int(applied(SAT(scale=scale), tokens, d)[0].marks["sat/newly_cut_fraction"].value.sum())
        for scale in (Quantile(), Bounded(ceiling=0.05))
    ]
    assert cut[0] == 0
    assert cut[1] > 50


# --- scopes -----------------------------------------------------------------------------------------------------------


def q_of(rule: SAT, stats: EdgeStatistics) -> float:
    return float(rule.scale(batch()[0], stats[Ratio("clipped", "token")]))


def test_a_lagged_scope_has_its_gate_off_before_the_first_update_and_then_uses_the_one_before():
    rule, memory = SAT(), Memory()
    tokens, d = batch()
    nobody = dataclasses.replace(tokens, trainable=torch.zeros(len(tokens), dtype=torch.bool))
    nothing = scope(rule, nobody, d)
    assert q_of(rule, memory.lagged(nothing)) == 0.0
    first = memory.lagged(nothing)[Ratio("clipped", "token")]
    assert not applied(rule, tokens, d, first)[0].marks["sat/gate_fraction"].value.any()
    for factor in (1.0, 3.0, 0.5):
        measured_now = scope(rule, tokens, factor * d.detach())
        memory.keep(memory.averaged(measured_now))
        assert q_of(rule, memory.lagged(nothing)) == q_of(rule, measured_now)


def test_a_running_average_blends_the_updates_quantiles_and_is_saved():
    rule, memory = SAT(scale=Average(decay=0.75)), Memory()
    tokens, d = batch()
    plain, wanted = q_of(SAT(), scope(SAT(), tokens, d)), None
    for factor in (1.0, 3.0, 0.5):
        averaged = memory.averaged(scope(rule, tokens, factor * d.detach()))
        wanted = factor * plain if wanted is None else 0.75 * wanted + 0.25 * factor * plain
        assert q_of(rule, averaged) == pytest.approx(wanted, rel=1e-5)
        memory.keep(averaged)
        memory, state = Memory(), memory.state()
        memory.restore(state)


def test_a_running_average_without_decay_is_the_quantile():
    memory, (tokens, d) = Memory(), batch()
    for factor in (1.0, 3.0):
        averaged = memory.averaged(scope(SAT(scale=Average(decay=0.0)), tokens, factor * d.detach()))
        assert q_of(SAT(scale=Average(decay=0.0)), averaged) == q_of(SAT(), scope(SAT(), tokens, factor * d.detach()))
        memory.keep(averaged)


def test_a_lagged_running_average_is_off_at_first_and_stays_one_update_behind():
    rule, memory = SAT(scale=Average(decay=0.5)), Memory()
    tokens, d = batch()
    nobody = dataclasses.replace(tokens, trainable=torch.zeros(len(tokens), dtype=torch.bool))
    assert q_of(rule, memory.lagged(scope(rule, nobody, d))) == 0.0
    memory.keep(memory.averaged(scope(rule, tokens, d)))
    averaged = memory.averaged(scope(rule, tokens, 3.0 * d.detach()))
    memory.keep(averaged)
    assert q_of(rule, memory.lagged(scope(rule, nobody, d))) == q_of(rule, averaged)


@pytest.mark.parametrize("measure", ["rank", "micro-batch"])
def test_a_running_average_is_refused_where_it_would_go_on_several_times_an_update(measure):
    with pytest.raises(ConfigError, match="a running average goes on once an update"):
        recipe(SAT(scale=Average()), measure=measure)


def test_a_running_average_needs_the_smoothed_quantile():
    assert Average(level=0.5, decay=0.25).needs == (Smoothed(AbsoluteQuantile(0.5), 0.25),)


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "options", "message"),
    [
        (
            Absolute,
            {"value": 0.0},
            r"value of the absolute scale must lie in \(0, 20\] nats \(0.03 is usual\); got 0.0",
        ),
        (Absolute, {"value": 21.0}, "value of the absolute scale must lie in"),
        (
            Bounded,
            {"floor": -0.1},
            r"floor of the bounded scale must lie in \[0, 20\] nats \(0.01 is usual\); got -0.1",
        ),
        (Bounded, {"floor": 0.2, "ceiling": 0.1}, "ceiling of the bounded scale must be above 0, at least floor"),
        (Bounded, {"floor": 0.0, "ceiling": 0.0}, "ceiling of the bounded scale must be above 0"),
        (Bounded, {"ceiling": 30.0}, "ceiling of the bounded scale must be above 0, at least floor and at most 20"),
        (Average, {"decay": 1.0}, r"decay of the ema scale must lie in \[0, 1\) \(0.9 is usual\); got 1.0"),
        (Average, {"level": 0.0}, "quantile must lie in"),
        (Bounded, {"level": 1.5}, "quantile must lie in"),
        (PerTurn, {"level": 0.0}, "quantile must lie in"),
        (PerTurn, {"most_turns": 0}, r"most_turns of the per-turn scale must lie in 1 .. 64 \(8 is usual\); got 0"),
        (PerTurn, {"most_turns": 65}, "most_turns of the per-turn scale must lie in 1 .. 64"),
        (PerStaleness, {"edges": (4, 2)}, "edges of bins must be whole numbers from 1 that ascend"),
        (PerStaleness, {"level": 2.0}, "quantile must lie in"),
    ],
)
def test_options_outside_their_range_are_refused(scale, options, message):
    with pytest.raises(ValueError, match=message):
        scale(**options)
