"""Proximal policies on their worked numbers: interpolation by staleness, and the running average of weights."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tether.core.average import FIRST_WEIGHT, averaged, decay_of, next_weight, surviving_fraction, survivors
from tether.proximal.a3po import A3POProximal
from tether.proximal.ewma import EWMAProximal

from .tables import assert_close, inputs, label, log, rows, tokens_with


@pytest.mark.parametrize("row", rows("A-3PO"), ids=lambda row: f"{row['v_theta']}, {row['v_behave']}")
def test_a3po_goes_as_far_towards_the_current_policy_as_the_token_is_stale(row):
    tokens = tokens_with(behavior=log([row["mu"]]), advantage=[1.0])
    tokens = dataclasses.replace(tokens, staleness=torch.tensor([row["v_theta"] - row["v_behave"]]))
    logp = torch.tensor(log([row["pi"]]))
    near = A3POProximal()(tokens, logp)
    assert_close(near.exp(), [row["prox (log-linear)"]])
    assert_close(A3POProximal(form="linear")(tokens, logp).exp(), [row["prox (linear)"]])
    assert_close((logp - near).exp(), [row["u = pi/prox (log-linear)"]])
    assert_close((near - tokens.logp_behavior) / (logp - tokens.logp_behavior), [row["alpha"]])


def test_the_average_of_the_weights_has_no_bias_towards_the_first():
    name = "PPO-EWMA, theta_k = 0,1,2,3, beta=.5"
    decay = inputs(name)["beta"]
    first, *later = rows(name)
    mean, weight = torch.tensor([first["theta"]]), FIRST_WEIGHT
    assert (mean.item(), weight) == (first["theta_ewma"], first["W"])
    for row in later:
        weight = next_weight(weight, decay)
        mean = averaged(mean, torch.tensor([row["theta"]]), weight)
        assert_close(weight, row["W"])
        assert_close(mean, [row["theta_ewma"]])


def test_the_average_is_a_sum_weighted_by_powers_of_the_decay():
    theta = torch.randn(9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    decay, weight, mean = 0.8, FIRST_WEIGHT, theta[:1]
    for now in theta[1:]:
        weight = next_weight(weight, decay)
        mean = averaged(mean, now[None], weight)
    powers = decay ** torch.arange(8, -1, -1, dtype=torch.float64)
    assert_close(weight, powers.sum())
    assert_close(mean, [(powers * theta).sum() / powers.sum()])


def test_weights_in_half_precision_do_not_make_the_average_one():
    mean = averaged(torch.tensor([0.0]), torch.tensor([1.0], dtype=torch.bfloat16), 3.0)
    assert mean.dtype == torch.float32
    assert_close(mean, [1 / 3])


@pytest.mark.parametrize("row", rows("EWMA decay"), ids=label)
def test_the_decay_comes_from_the_window(row):
    decay = EWMAProximal(window=row["W_stale"]).beta
    assert decay == decay_of(row["W_stale"])
    assert_close(decay, row["beta = W/(W+2)"])
    assert_close(decay / (1 - decay), row["centre of mass beta/(1-beta)"])
    assert EWMAProximal(decay=0.25, window=row["W_stale"]).beta == 0.25


def test_the_average_is_reset_after_the_step_in_which_too_few_tokens_survive():
    """Revised PPO-EWMA: .97, .93, .88, .95 against .9; without a bound, never."""
    fractions = [0.97, 0.93, 0.88, 0.95]
    assert [EWMAProximal(reset_below=0.9).resets(x) for x in fractions] == [False, False, True, False]
    assert not any(EWMAProximal().resets(x) for x in [*fractions, 0.0])


def test_tokens_without_an_advantage_and_untrainable_ones_are_no_casualties():
    active = torch.tensor([True, False, False, False, True])
    advantage = torch.tensor([1.0, -1.0, 0.0, 2.0, -0.5])
    trainable = torch.tensor([True, True, True, False, True])
    parts = [survivors(active[s], advantage[s], trainable[s]) for s in (slice(0, 2), slice(2, 5))]
    assert surviving_fraction(parts[0] + parts[1]) == pytest.approx(2 / 3)
    assert surviving_fraction(survivors(active, torch.zeros(5), trainable)) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, r"decay of ewma must lie in \(0, 1\) \(0.8 is usual\); got 1.0"),
        ({"decay": math.nan}, "decay of ewma must"),
        ({"window": -1}, "window of ewma must lie in 1 .. 1000000"),
        ({"reset_below": 1.5}, r"reset_below of ewma must lie in \[0, 1\] \(0.9 is usual\); got 1.5"),
    ],
)
def test_settings_of_the_average_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EWMAProximal(**options)
