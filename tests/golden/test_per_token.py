"""Ten tokens on the policy triangle: ratios, losses and gradients of the rules that exist."""

from __future__ import annotations

import pytest
import torch

from tether.core.ratio import beyond_guard, edge_log_ratio, log_ratio
from tether.core.rule import PolicyTokens
from tether.core.statistics import Statistics
from tether.corrections.tis import TIS
from tether.rules.aspo import ASPO
from tether.rules.cispo import CISPO
from tether.rules.dis import DIS
from tether.rules.dppo import DPPO
from tether.rules.drpo import DRPO
from tether.rules.ppo import PPO
from tether.rules.sapo import SAPO
from tether.rules.spo import SPO
from tether.rules.tis_reinforce import TISReinforce
from tether.rules.topr import TOPR
from tether.rules.up import UP

from .tables import assert_close, inputs, log, loss_and_gradient, one_by_one, recipe, rows, tokens_with

TOKENS = rows("per-token inputs")
LOSS = rows("per-token loss")
GRADIENT = rows("per-token dL/dlogp")

PPO_2 = recipe(PPO(epsilon_low=0.2, epsilon_high=0.2))
RECIPES = {
    "ppo": (PPO_2, "mu"),
    "dual_clip": (recipe(PPO(epsilon_low=0.2, epsilon_high=0.2, dual_clip=3.0)), "mu"),
    "topr_tok": (recipe(TOPR()), "mu"),
    "sapo": (recipe(SAPO(tau_positive=1.0, tau_negative=1.05)), "mu"),
    "aspo": (recipe(ASPO(epsilon_low=0.2, epsilon_high=0.2, cap=3.0)), "mu"),
    "decoupled": (recipe(PPO(epsilon_low=0.2, epsilon_high=0.2), corrections=(TIS(cap=100.0),)), "mutilde"),
    "dppo_tv.15": (recipe(DPPO(divergence="tv", delta_low=0.15, delta_high=0.15, cap=20.0)), "mu"),
    "dppo_kl.05": (recipe(DPPO(divergence="kl", delta_low=0.05, delta_high=0.05, cap=20.0)), "mu"),
    "dppo_tv1e-3_x_clip": (recipe(DPPO(delta_low=1e-3, delta_high=1e-3, form="clip")), "mu"),
    "cispo": (recipe(CISPO(epsilon_low=None, epsilon_high=0.2)), "mu"),
    "dis": (recipe(DIS(epsilon_low=0.3, epsilon_high=5.0)), "mu"),
    "spo": (recipe(SPO(epsilon=0.2, ratio_cap=1e9)), "mu"),  # the column has no cap: T6 stands at r = 100
    "drpo.15": (recipe(DRPO(delta=0.15)), "mu"),
    "drpo12.5": (recipe(DRPO(delta=12.5)), "mu"),
    "up": (recipe(UP(epsilon_low=0.2, dual_clip=3.0)), "mu"),
    "tis2_reinforce": (recipe(TISReinforce(cap=2.0)), "mu"),
}
"""Column -> recipe and the policy that its ratio is clipped against."""


def triangle(proximal: str):
    column = {name: [row[name] for row in TOKENS] for name in ("mu", "mutilde", "pi", "A")}
    tokens = tokens_with(behavior=log(column["mu"]), proximal=log(column[proximal]), advantage=column["A"])
    return tokens, torch.tensor(log(column["pi"]))


def test_every_column_is_tested():
    columns = set(LOSS[0]) - {"tok"}
    tested = {*RECIPES, "ppo_mask"}
    assert tested == columns == set(GRADIENT[0]) - {"tok"}


def test_ratios_of_every_edge():
    tokens, logp = triangle("mutilde")
    for edge, column in (("total", "r=pi/mu"), ("clipped", "u=pi/mutilde"), ("weight", "b=mutilde/mu")):
        assert_close(edge_log_ratio(edge, logp, tokens, "token").exp(), [row[column] for row in TOKENS])
    assert_close(edge_log_ratio("total", logp, tokens, "token"), [row["d"] for row in TOKENS])


@pytest.mark.parametrize("column", RECIPES)
def test_loss_and_gradient_of_a_rule(column):
    algorithm, proximal = RECIPES[column]
    loss, gradient = one_by_one(*triangle(proximal), algorithm)
    assert_close(loss, [row[column] for row in LOSS])
    assert_close(gradient, [row[column] for row in GRADIENT])


def test_ppo_as_a_mask_has_ppos_gradient_and_the_unclipped_loss_of_the_tokens_it_keeps():
    tokens, logp = triangle("mu")
    active = loss_and_gradient(tokens, logp, PPO_2)[0].active
    kept, gradient = one_by_one(tokens, logp, PPO_2)
    assert_close(torch.where(active, kept, 0.0), [row["ppo_mask"] for row in LOSS])
    assert_close(gradient, [row["ppo_mask"] for row in GRADIENT])


def test_tis_against_an_anchor_that_is_the_current_policy_is_truncated_reinforce():
    """One update a batch: the clipped ratio is 1, the gradient is -min(pi/mu, 2) A whatever the clip."""
    cap = inputs("per-token loss")["tis2_reinforce"]["C"]
    tokens, logp = triangle("pi")
    loss, gradient = one_by_one(tokens, logp, recipe(PPO(), corrections=(TIS(cap=cap),)))
    wanted, wanted_gradient = one_by_one(*triangle("mu"), recipe(TISReinforce(cap=cap)))
    assert_close(gradient, wanted_gradient)
    assert_close(loss * logp, wanted)  # the rule writes -w A log pi, PPO -w A r with r = 1


@pytest.mark.parametrize("row", rows("log-ratio guard, PPO eps=.2"), ids=lambda row: f"{row['d']}, A={row['A']}")
def test_guard_ends_the_gradient_and_is_counted(row):
    tokens = tokens_with(behavior=[0.0], advantage=[row["A"]])
    terms, gradient = loss_and_gradient(tokens, [row["d"]], PPO_2)
    d = torch.tensor([row["d"]])
    assert_close(log_ratio(d, tokens.logp_behavior).exp(), [row["r"]])
    assert_close(terms.loss, row["L"])
    assert_close(gradient, [row["dL/dlogp"]])
    assert beyond_guard(d, tokens.logp_behavior).sum() == row["counted"]


def test_decomposition_of_the_ratio():
    table = rows("ratio decomposition")
    old, mu, pi = (log([row[name] for row in table]) for name in ("old", "mu", "pi"))
    tokens = tokens_with(behavior=mu, proximal=old, advantage=[1.0] * len(table))
    for edge, ratio in (("weight", "r_d"), ("clipped", "r_s"), ("total", "r")):
        seen = edge_log_ratio(edge, torch.tensor(pi), tokens, "token")
        assert_close(seen, [row[f"log {ratio}"] for row in table])
        assert_close(seen.exp(), [row[ratio] for row in table])


# --- TIS -------------------------------------------------------------------------------------------------------------


def weights(log_k: list[float], cap: float) -> torch.Tensor:
    tokens = tokens_with(behavior=[0.0] * len(log_k), proximal=log_k, advantage=[1.0] * len(log_k))
    seen = edge_log_ratio("weight", torch.zeros(len(log_k)), tokens, "token")
    return TIS(cap=cap)(seen, PolicyTokens(seen), tokens, Statistics({})).value


def test_tis_on_the_token_set():
    table = rows("TIS / IcePop / KPop on the token set")
    assert_close(weights(log([row["k=mutilde/mu"] for row in table]), 2.0), [row["TIS verl min(k,2)"] for row in table])
    r = log([row["pi"] / row["mu"] for row in TOKENS[: len(table)]])
    assert_close(weights(r, 2.0), [row["min(r,2)"] for row in table])
    assert_close(weights(r, 5.0), [row["TIS Qwen min(r,5)"] for row in table])
