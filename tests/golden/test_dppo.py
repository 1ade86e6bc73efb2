"""DPPO on worked numbers: what each divergence is, and the ratio window that it amounts to."""

from __future__ import annotations

import math

import pytest
import torch

from tether.core.divergences import bernoulli_kl, binary_tv, kullback_leibler, partition, total_variation
from tether.rules.dppo import DPPO

from .tables import assert_close, inputs, label, log, loss_and_gradient, recipe, rows, tokens_with

WINDOW = "DPPO ratio window abs(r-1) <= delta/mu"
DISCRIMINATORS = "DPPO discriminators, sampled token = first"


def test_binary_divergences_of_the_ten_tokens():
    table = rows("per-token inputs")
    mu, pi = (torch.tensor(log([row[name] for row in table])) for name in ("mu", "pi"))
    assert_close(binary_tv(pi, mu), [row["TV abs(pi-mu)"] for row in table])
    assert_close(bernoulli_kl(mu, pi), [row["KLbern(mu,pi)"] for row in table])
    assert_close(bernoulli_kl(pi, mu), [row["KLbern(pi,mu)"] for row in table])


def is_kept(mu: float, ratio: float, advantage: float, delta: float) -> bool:
    tokens = tokens_with(behavior=log([mu]), advantage=[advantage])
    rule = DPPO(delta_low=delta, delta_high=delta)
    return bool(loss_and_gradient(tokens, log([mu * ratio]), recipe(rule))[0].active.item())


@pytest.mark.parametrize(("column", "delta"), [("delta=.15", 0.15), ("delta=.001", 0.001)])
@pytest.mark.parametrize("row", rows(WINDOW), ids=label)
def test_total_variation_is_a_ratio_window(row, column, delta):
    """The mask turns over at the row's width, on each side that a probability can reach."""
    mu, width = row["mu"], row[column]
    assert mu * (1 + width) < 1 or width < 1
    for side in (1.0, -1.0):
        inside, outside = (1 + side * width * near for near in (0.999, 1.001))
        if outside > 0 and mu * outside < 1:
            assert is_kept(mu, inside, side, delta)
            assert not is_kept(mu, outside, side, delta)
            assert is_kept(mu, outside, -side, delta), "pull-back"


@pytest.mark.parametrize("row", rows(DISCRIMINATORS), ids=label)
def test_discriminators(row):
    given = inputs(DISCRIMINATORS)
    mu, pi = (torch.tensor([row[name]]).log() for name in ("mu", "pi"))
    chosen = given["sampled"]
    before, now = (partition(x[:, chosen], held(x, chosen, given["top_ids"])) for x in (mu, pi))
    assert_close(binary_tv(mu[:, chosen], pi[:, chosen]), [row["TV binary"]])
    assert_close(total_variation(before, now), [row["TV top-2"]])
    assert_close(total_variation(mu.exp().double(), pi.exp().double()), [row["TV full"]])
    assert_close(bernoulli_kl(mu[:, chosen], pi[:, chosen]), [row["KL binary"]])
    assert_close(kullback_leibler(before, now), [row["KL top-2"]])
    assert_close(kullback_leibler(mu.exp().double(), pi.exp().double()), [row["KL full"]])


def held(logp: torch.Tensor, sampled: int, ids: list[int]) -> torch.Tensor:
    """Log-probabilities of the top ids, with ``-inf`` in the place of the sampled one."""
    top = logp[:, ids].clone()
    top[:, [i for i, one in enumerate(ids) if one == sampled]] = -math.inf
    return top
