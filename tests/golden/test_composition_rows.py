"""One token, mu = .5, old = .52, pi = .6, under recipes that multiply to pi/behavior - and one that does not."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tether.core.aggregation import Denominator
from tether.core.loss import policy_loss
from tether.core.ratio import Ratio
from tether.core.rule import PolicyTokens
from tether.core.statistics import AbsoluteQuantile, Statistics
from tether.corrections.icepop import IcePop
from tether.corrections.tis import TIS
from tether.errors import ConfigError
from tether.proximal.old import OldProximal
from tether.proximal.rollout import RolloutProximal
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .tables import assert_close, inputs, loss_and_gradient, recipe, rows, tokens_with

NAME = "composition, mu=.5 mutilde=.52 pi=.6 A=1"
GIVEN = inputs(NAME)
LOSS = {row["recipe"]: row["L"] for row in rows(NAME)}
TESTED = {
    "E edge, PPO",
    "U edge x TIS(B)",
    "WRONG: E edge x TIS(B)",
    "E edge, SAT c+=.409836",
    "U edge SAT x TIS(B)",
    "U edge SAT x IcePop weight",
    "E edge SAT x IcePop 0/1",
    "U edge PPO x IcePop weight",
    "E edge PPO x IcePop weight (seed literal)",
}
BAND = {"alpha": GIVEN["icepop_low"], "beta": GIVEN["icepop_high"]}


def token(proximal: str):
    behavior, old = math.log(GIVEN["mu"]), math.log(GIVEN["mutilde"])
    near = {"behavior": behavior, "old": old}[proximal]
    tokens = tokens_with(behavior=[behavior], proximal=[near], advantage=[GIVEN["A"]])
    return dataclasses.replace(tokens, logp_old=torch.tensor([old])), [math.log(GIVEN["pi"])]


def test_every_recipe_is_tested():
    assert set(LOSS) == TESTED


def test_ppo_on_the_total_edge():
    tokens, logp = token("behavior")
    assert_close(loss_and_gradient(tokens, logp, recipe(PPO()))[0].loss, LOSS["E edge, PPO"])


def test_ppo_on_the_update_edge_times_tis():
    tokens, logp = token("old")
    algorithm = recipe(PPO(), corrections=(TIS(cap=GIVEN["tis_cap"]),))
    assert_close(loss_and_gradient(tokens, logp, algorithm)[0].loss, LOSS["U edge x TIS(B)"])


def test_ppo_on_the_total_edge_times_tis_is_refused_before_it_gives_the_wrong_number():
    with pytest.raises(ConfigError, match="correct it a second time"):
        recipe(PPO(), corrections=(TIS(),), proximal=RolloutProximal())
    mu, old, pi = (math.log(GIVEN[name]) for name in ("mu", "mutilde", "pi"))
    assert_close(-math.exp(old - mu) * min(math.exp(pi - mu), 1.2), LOSS["WRONG: E edge x TIS(B)"])


@pytest.mark.parametrize(
    ("row", "proximal", "corrections"),
    [
        ("E edge, SAT c+=.409836", "behavior", ()),
        ("U edge SAT x TIS(B)", "old", (TIS(cap=2.0),)),
        ("U edge SAT x IcePop weight", "old", (IcePop(**BAND),)),
        ("E edge SAT x IcePop 0/1", "behavior", (IcePop(**BAND, form="mask", edge="engine"),)),
    ],
)
def test_sat_with_its_worked_contraction(row, proximal, corrections):
    """The row fixes the contraction at psi(.18; .15); here the token's own d is gated by the q that gives the same."""
    tokens, logp = token(proximal)
    d = torch.tensor(logp) - tokens.logp_proximal
    q = d[0] * GIVEN["sat_q"] / GIVEN["sat_d"]
    algorithm = recipe(SAT(), corrections=corrections)
    stats = {
        Ratio("clipped", "token"): Statistics({AbsoluteQuantile(0.9): q}),
        Ratio("weight", "token"): Statistics({}),
        Ratio("engine", "token"): Statistics({}),
    }
    leaf = torch.tensor(logp, requires_grad=True)
    assert_close(policy_loss(PolicyTokens(leaf), tokens, algorithm, stats, Denominator(1, 1)).loss, LOSS[row])


@pytest.mark.parametrize("edge", ["weight", "engine"])
def test_ppo_on_the_update_edge_times_icepops_weight(edge):
    """Against old log-probabilities both edges are the engine's mismatch."""
    tokens, logp = token("old")
    algorithm = recipe(PPO(), corrections=(IcePop(**BAND, edge=edge),), proximal=OldProximal())
    assert_close(loss_and_gradient(tokens, logp, algorithm)[0].loss, LOSS["U edge PPO x IcePop weight"])


def test_the_literal_icepop_counts_the_engines_mismatch_twice():
    tokens, logp = token("behavior")
    literal = IcePop(**BAND, edge="engine", literal=True)
    algorithm = recipe(PPO(), corrections=(literal,), proximal=RolloutProximal())
    assert_close(loss_and_gradient(tokens, logp, algorithm)[0].loss, LOSS["E edge PPO x IcePop weight (seed literal)"])
