"""``sat-edge``: SAT whose mismatch and clipped ratio are between different policies."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.golden.tables import loss_and_gradient
from tether.config.bind import plugin
from tether.core.advantage import GRPO
from tether.core.aggregation import TokenSum
from tether.core.algorithm import Algorithm
from tether.core.kernels import Exponential, Hill, Step
from tether.core.ratio import Ratio
from tether.core.rule import PolicyTokens
from tether.core.statistics import AbsoluteQuantile, Statistics
from tether.core.tokens import TokenBatch
from tether.corrections.tis import TIS
from tether.errors import ConfigError
from tether.proximal.anchor import AnchorProximal
from tether.proximal.rollout import RolloutProximal
from tether.registry import RULES
from tether.rules.ppo import PPO
from tether.rules.sat import SAT
from tether.rules.sat_edge import SATEdge
from tether.scales.per_turn import PerTurn
from tether.scales.quantile import Quantile

from .heavy import SHAPES, applied, log_ratios, tokens_at

Q = AbsoluteQuantile(0.9)


def algorithm(rule, **choices) -> Algorithm:
    kept = {"proximal": RolloutProximal(), "level": "token", "aggregation": TokenSum(), "advantage": GRPO(), **choices}
    return Algorithm(rule=rule, **kept)


def anchored(rule) -> Algorithm:
    return algorithm(rule, proximal=AnchorProximal(), corrections=(TIS(),))


def token(*, total: float, clipped: float, advantage: float) -> tuple[TokenBatch, torch.Tensor]:
    """One token with log pi/behavior and log pi/proximal as given."""
    logp = torch.zeros(1)
    place = torch.zeros(1, dtype=torch.int64)
    tokens = TokenBatch(
        logp_behavior=logp - total,
        logp_proximal=logp - clipped,
        advantage=torch.full((1,), advantage),
        trainable=torch.ones(1, dtype=torch.bool),
        sequence=place,
        group=place,
        staleness=place,
    )
    return tokens, logp


def judged(rule, *, total: float, clipped: float, advantage: float, q: float = 0.1):
    tokens, logp = token(total=total, clipped=clipped, advantage=advantage)
    return rule(torch.full((1,), clipped), PolicyTokens(logp), tokens, Statistics({Q: torch.tensor(q)}))


@pytest.mark.parametrize("kernel", [Hill(), Exponential(), Step()], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_on_the_edge_that_is_clipped_it_is_sat_to_the_last_bit(kernel, shape, scale):
    tokens, d = tokens_at(log_ratios(shape, 800, scale=scale, seed=2), seed=3)
    (sat, wanted), (out, gradient) = (applied(rule(kernel=kernel), tokens, d) for rule in (SAT, SATEdge))
    assert out.objective.equal(sat.objective)
    assert gradient.equal(wanted)
    assert out.active.equal(sat.active)
    for name, mark in sat.marks.items():
        assert out.marks[name].value.equal(mark.value)
        assert out.marks[name].among.equal(mark.among)
    assert out.marks["sat/gate_fraction"].value.any()


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_two_tokens_with_one_ratio_are_kept_and_cut(side):
    near = judged(SATEdge(), total=0.05 * side, clipped=0.08 * side, advantage=side)
    far = judged(SATEdge(), total=0.4 * side, clipped=0.08 * side, advantage=side)
    assert (bool(near.active), bool(far.active)) == (True, False)
    end = 1 + side * 0.2 / (1 + 16)
    assert far.objective.item() == pytest.approx(side * end, rel=1e-6)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_side_that_contracts_is_that_of_the_mismatch_not_of_the_ratio(side):
    """Below the data and above the proximal policy: growing on brings it back, up to PPO's own end."""
    back = judged(SATEdge(), total=-0.4 * side, clipped=0.15 * side, advantage=side)
    assert back.active.all()
    assert back.marks["sat/gate_fraction"].value.all()
    beyond = judged(SATEdge(), total=-0.4 * side, clipped=0.5 * side, advantage=side)
    assert beyond.objective.item() == pytest.approx(side * (1 + 0.2 * side), rel=1e-6)
    assert not beyond.marks["sat/newly_cut_fraction"].value.any()


def random_tokens(size: int = 1500) -> tuple[TokenBatch, torch.Tensor]:
    tokens, d = tokens_at(log_ratios("student", size, scale=0.05, seed=1), seed=2)
    noise = torch.Generator().manual_seed(3)
    policies = {
        name: tokens.logp_behavior + 0.05 * torch.randn(size, generator=noise)
        for name in ("logp_proximal", "logp_old", "logp_anchor")
    }
    return dataclasses.replace(tokens, **{**policies, "logp_anchor": policies["logp_proximal"]}), d.detach()


def edge_of(name: str, tokens: TokenBatch, logp: torch.Tensor) -> torch.Tensor:
    ends = {
        "total": (logp, tokens.logp_behavior),
        "update": (logp, tokens.logp_old),
        "engine": (tokens.logp_old, tokens.logp_behavior),
        "weight": (tokens.logp_proximal, tokens.logp_behavior),
    }
    return ends[name][0] - ends[name][1]


@pytest.mark.parametrize("mismatch", ["total", "update", "engine", "weight"])
def test_objective_is_that_of_the_definition_on_every_edge(mismatch):
    """Eq. 3.1 to 3.6 written out: both ends of every token, then min and clip."""
    tokens, logp = random_tokens()
    rule = SATEdge(mismatch=mismatch, epsilon_high=0.28)
    _, gradient = loss_and_gradient(tokens, logp, anchored(rule))
    d, leaf = edge_of(mismatch, tokens, logp), logp.clone().requires_grad_()
    q = d.abs().sort().values[int(0.9 * len(d)) - 1]
    up, down = (1 / (1 + (u.clamp(min=0) / q) ** 2) for u in (d, -d))
    gate = d.abs() > q
    upper = torch.where(gate, 1 + 0.28 * up, 1.28)
    lower = torch.where(gate, 1 - 0.2 * down, 0.8)
    r, a = (leaf - tokens.logp_proximal).exp(), tokens.advantage
    weight = (tokens.logp_proximal - tokens.logp_behavior).exp().clamp(max=2.0)
    held = torch.minimum(torch.maximum(r, lower), upper)
    (-(weight * torch.where(r * a <= held * a, r * a, (held * a).detach())).sum()).backward()
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-5, atol=1e-7)
    _, ppo = loss_and_gradient(tokens, logp, anchored(PPO(epsilon_high=0.28)))
    assert ((gradient == 0) & (ppo != 0)).any()


def test_statistics_are_those_of_the_mismatch():
    assert SATEdge(mismatch="engine").traits.measured("token") == Ratio("engine", "token")
    assert SATEdge(mismatch="engine").traits.ratio("token") == Ratio("clipped", "token")


@pytest.mark.parametrize(
    ("mismatch", "inputs"), [("total", ()), ("weight", ()), ("update", ("logp_old",)), ("engine", ("logp_old",))]
)
def test_old_log_probs_are_asked_for_where_the_edge_has_them(mismatch, inputs):
    assert SATEdge(mismatch=mismatch).traits.inputs == inputs
    assert SATEdge(mismatch=mismatch, scale=PerTurn()).traits.inputs == ("turn", *inputs)


def test_the_weight_of_the_rollout_policy_is_one_and_nothing_to_measure():
    with pytest.raises(ConfigError, match=r"'sat-edge' measures proximal / behavior, which is always 1 with proximal"):
        algorithm(SATEdge(mismatch="weight"))


def test_one_ratio_a_response_is_refused():
    with pytest.raises(ConfigError, match=r"rule 'sat-edge' is defined at level 'token'; got 'sequence'"):
        algorithm(SATEdge(), level="sequence")


def test_an_edge_that_is_none_is_refused():
    with pytest.raises(
        ConfigError, match=r"rule.mismatch must be one of \['total', 'update', 'engine', 'weight'\]; got"
    ):
        plugin(RULES, {"name": "sat-edge", "mismatch": "clipped"}, "rule")


def test_readings_have_no_one_radius():
    assert SATEdge(scale=Quantile(level=0.5)).readings(Statistics({AbsoluteQuantile(0.5): torch.tensor(0.25)})) == {
        "sat/q": 0.25
    }
