"""M2PO: bounds and masks that hold the second moment of a step to its budget."""

from __future__ import annotations

import math

import pytest
import torch

from tether.core.examples import tokens_of
from tether.core.loss import measure_scope
from tether.core.ratio import Ratio
from tether.core.second_moment import SecondMomentLimit
from tether.core.surrogate import MOST_RADIUS
from tether.corrections.m2po_elimination import M2POElimination
from tether.rules.m2po import M2PO
from tether.rules.ppo import PPO

from .tables import assert_close, inputs, loss_and_gradient, recipe, rows

CAP, ELIMINATION = "M2PO cap (official code, budget .04)", "M2PO elimination (AReaL, budget .04)"
GIVEN = inputs(CAP)
RULE = M2PO(budget=GIVEN["budget"], floor=(1 - GIVEN["low"], 1 + GIVEN["high"]))


@pytest.mark.parametrize("row", rows(CAP), ids=lambda row: str(row["log r"][:4]))
def test_cap_and_the_bounds_it_gives(row):
    tokens, logp = tokens_of(log_ratio=row["log r"], advantage=row["A"])
    d, a = torch.tensor(row["log r"]), torch.tensor(row["A"])
    harmful = d * a > 0
    assert_close((d.square() * harmful).sum() / harmful.sum().clamp(min=1), row["M2 harmful"])
    stats = measure_scope(recipe(RULE), [(logp, tokens)])[Ratio("clipped", "token")]
    (limit,) = RULE.traits.needs
    assert_close(stats[limit], math.inf if row["tau"] is None else row["tau"])
    lower, upper = RULE.bounds(stats)
    assert_close(lower, row["lower bound"])
    assert_close(upper, MOST_RADIUS if row["upper bound"] is None else row["upper bound"])
    shown = RULE.readings(stats)
    assert_close(shown["m2po/low"], row["lower bound"])
    assert ("m2po/high" in shown) == (row["upper bound"] is not None)


@pytest.mark.parametrize("row", rows(CAP), ids=lambda row: str(row["log r"][:4]))
def test_loss_and_gradient_are_those_of_the_clip_between_the_bounds(row):
    tokens, logp = tokens_of(log_ratio=row["log r"], advantage=row["A"])
    terms, gradient = loss_and_gradient(tokens, logp, recipe(RULE))
    upper = math.inf if row["upper bound"] is None else row["upper bound"]
    lower, edge = row["lower bound"], 1 + 1e-9  # tau is the value of a token, which stands on the bound and stays
    wanted = []
    for r, a in zip(torch.tensor(row["log r"]).double().exp().tolist(), row["A"], strict=True):
        if a > 0:
            wanted.append((-min(r, upper), -r if r <= upper * edge else 0.0))
        else:
            wanted.append((max(r, lower), r if r * edge >= lower else 0.0))
    assert_close(terms.loss, sum(loss for loss, _ in wanted))
    assert_close(gradient, [slope for _, slope in wanted])


def test_elimination():
    (row,) = rows(ELIMINATION)
    tokens, logp = tokens_of(log_ratio=row["log r"], advantage=[1.0] * len(row["log r"]))
    mask = M2POElimination(budget=inputs(ELIMINATION)["budget"])
    terms, gradient = loss_and_gradient(tokens, logp, recipe(PPO(), corrections=(mask,)))
    kept = terms.weights["m2po-elimination"]
    assert kept.tolist() == row["keep"]
    square = logp.detach().square()
    assert_close(square.mean(), row["M2 before"])
    assert_close((square * kept).sum() / kept.sum(), row["M2 after"])
    assert (gradient != 0).tolist() == [bool(k) for k in row["keep"]]


def test_elimination_keeps_the_smallest_if_even_that_exceeds_the_budget():
    limit = SecondMomentLimit(budget=0.04, of="kept")
    tokens, logp = tokens_of(log_ratio=[0.9, -0.3, 0.5], advantage=[1.0] * 3)
    assert loss_and_gradient(tokens, logp, recipe(PPO(), corrections=(M2POElimination(),)))[0].active[1]
    stats = measure_scope(recipe(PPO(), corrections=(M2POElimination(),)), [(logp, tokens)])
    assert_close(stats[Ratio("total", "token")][limit], 0.3)
