"""BAPO: contributions of both signs under every pair of bounds, and the pair that is chosen."""

from __future__ import annotations

import pytest
import torch

from tether.core.examples import tokens_of
from tether.core.loss import measure_scope
from tether.core.ratio import Ratio
from tether.rules.bapo import BAPO
from tether.rules.ppo import PPO

from .tables import assert_close, inputs, log, loss_and_gradient, recipe, rows

TABLE = "BAPO contributions, r=[1.5, 0.9, 1.1, 0.5, 0.7, 1.3] A=[1, 1, 1, -1, -1, -1]"
R, A = inputs(TABLE)["r"], inputs(TABLE)["A"]
CPU = torch.device("cpu")


def chosen(rule: BAPO) -> list[float]:
    tokens, logp = tokens_of(log_ratio=log(R), advantage=A)
    shown = rule.readings(measure_scope(recipe(rule), [(logp, tokens)])[Ratio("clipped", "token")])
    return [shown["bapo/low"], shown["bapo/high"]]


@pytest.mark.parametrize("row", rows(TABLE), ids=lambda row: f"{row['c_low']}, {row['c_high']}")
@pytest.mark.parametrize(("count", "name"), [("code", "(code)"), ("live", "live-gradient")])
def test_contributions(row, count, name):
    balance = BAPO(count=count).balance
    tokens, logp = tokens_of(log_ratio=log(R), advantage=A)
    positive, negative = balance.contributions(balance.local(logp, tokens, ()))
    pos = positive[balance.highs(CPU).isclose(torch.tensor(row["c_high"]))]
    neg = negative[balance.lows(CPU).isclose(torch.tensor(row["c_low"]))]
    assert_close(pos, [row[f"pos {name}"]])
    assert_close(neg, [row[f"neg {name}"]])
    assert_close(pos / neg, [row["pos/neg (code)" if count == "code" else "ratio live"]])


@pytest.mark.parametrize(
    ("count", "target", "bounds"),
    [
        ("code", 1.0, (0.6, 1.2)),  # 1.2308 at once
        ("live", 1.0, (0.6, 1.2)),
        ("live", 1.5, (0.75, 1.2)),  # 2 / 1.3 as soon as the token at r = 0.7 is cut
        ("live", 2.0, (0.8, 1.5)),  # 3.5 / 1.3 as soon as the token at r = 1.5 is kept
        ("code", 1.2, (0.6, 1.2)),
        ("code", 1.5, (0.8, 2.0)),  # never: raising the lower bound lowers pos / neg as the code counts
    ],
)
def test_the_first_pair_that_reaches_the_target_is_chosen(count, target, bounds):
    assert_close(chosen(BAPO(count=count, target=target)), bounds)


def test_without_negative_advantages_the_narrowest_bounds_suffice():
    rule = BAPO()
    tokens, logp = tokens_of(log_ratio=[0.5, -0.5], advantage=[1.0, 2.0])
    assert_close(measure_scope(recipe(rule), [(logp, tokens)])[Ratio("clipped", "token")][rule.balance], [0.6, 1.2])


def test_loss_and_gradient_are_those_of_the_clip_between_the_bounds():
    tokens, logp = tokens_of(log_ratio=log(R), advantage=A)
    got, gradient = loss_and_gradient(tokens, logp, recipe(BAPO(count="live", target=1.5)))
    wanted, slope = loss_and_gradient(tokens, logp, recipe(PPO(epsilon_low=0.25, epsilon_high=0.2, dual_clip=3.0)))
    assert_close(got.loss, wanted.loss)
    assert_close(gradient, slope)
    assert_close(got.loss, -(1.2 + 0.9 + 1.1) + (0.75 + 0.75 + 1.3))


def test_a_bound_goes_its_way_in_steps_and_ends_where_it_should():
    balance = BAPO(low=(0.6, 0.6), high=(1.2, 1.33)).balance
    assert_close(balance.lows(CPU), [0.6])
    assert_close(balance.highs(CPU), [1.2, 1.25, 1.3, 1.33])
    assert_close(BAPO().balance.lows(CPU), [0.6, 0.65, 0.7, 0.75, 0.8])
    assert len(BAPO().balance.highs(CPU)) == 17
    assert_close(BAPO().balance.highs(CPU)[-1], 2.0)
