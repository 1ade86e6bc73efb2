"""DRPO and SPO: a pull that fades, vanishes where it should, and turns round beyond."""

from __future__ import annotations

import math

import pytest
import torch

from tests.golden.tables import loss_and_gradient, recipe, tokens_with
from tether.core.examples import tokens_of
from tether.rules.drpo import DRPO
from tether.rules.spo import SPO

SIGNS = (1.0, -1.0)


def pull(rule, mu: float, pi: float, advantage: float) -> float:
    """Gradient of the objective in the current log-probability."""
    tokens = tokens_with(behavior=[math.log(mu)], advantage=[advantage])
    terms, gradient = loss_and_gradient(tokens, [math.log(pi)], recipe(rule))
    assert terms.active.all()
    return -gradient.item()


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("mu", [0.3, 0.5, 0.7])
def test_drpo_comes_to_rest_delta_away_in_probability(mu, sign):
    """Stationary at pi* = mu + sign(A) delta: towards it before, back from beyond."""
    rest, rule = mu + sign * 0.15, DRPO(delta=0.15)
    assert pull(rule, mu, rest, 2 * sign) == pytest.approx(0.0, abs=1e-6)
    assert pull(rule, mu, rest - 0.01 * sign, 2 * sign) * sign > 0
    assert pull(rule, mu, rest + 0.01 * sign, 2 * sign) * sign < 0


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("pi", [1e-4, 0.3, 0.5, 0.7, 0.999])
def test_the_weight_of_drpo_stays_within_one_over_delta_of_one(pi, sign):
    weight = pull(DRPO(), 0.5, pi, sign) / (sign * pi / 0.5)
    assert abs(weight - 1) <= 1 / 12.5
    assert weight == pytest.approx(1 - sign * (pi - 0.5) / 12.5, rel=1e-5)


@pytest.mark.parametrize("sign", SIGNS)
def test_spo_comes_to_rest_where_ppo_stops(sign):
    rest, rule = 1 + 0.2 * sign, SPO(epsilon=0.2)
    assert pull(rule, 0.4, 0.4 * rest, 2 * sign) == pytest.approx(0.0, abs=2e-6)
    assert pull(rule, 0.4, 0.4 * (rest - 0.01 * sign), 2 * sign) * sign > 0
    assert pull(rule, 0.4, 0.4 * (rest + 0.01 * sign), 2 * sign) * sign < 0


@pytest.mark.parametrize("sign", SIGNS)
def test_the_ratio_cap_of_spo_holds_value_and_gradient_and_drops_no_token(sign):
    d = [math.log(r) for r in (19.0, 20.0, 21.0, 1e6)]
    tokens, logp = tokens_of(log_ratio=d, advantage=[sign] * 4)
    _, capped = loss_and_gradient(tokens, logp, recipe(SPO()))
    _, free = loss_and_gradient(tokens, logp, recipe(SPO(ratio_cap=1e9)))
    torch.testing.assert_close(capped[:2], free[:2])
    torch.testing.assert_close(capped[2:], capped[1:2].expand(2))
    assert (free[2:].abs() > capped[2:].abs()).all()
    assert (capped != 0).all()


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (DRPO, {"delta": 0.0}, r"delta of drpo must lie in \[1e-06, 1e\+09\] .*got 0.0"),
        (DRPO, {"delta": math.nan}, "delta of drpo must .*got nan"),
        (SPO, {"epsilon": 0.0}, r"epsilon of spo must lie in \[1e-06, 1e\+09\] \(0.2 is usual\); got 0.0"),
        (SPO, {"ratio_cap": 1.0}, r"ratio_cap of spo must lie in \(1, 1e\+09\] \(20 is usual\); got 1.0"),
        (SPO, {"ratio_cap": math.inf}, "ratio_cap of spo must .*got inf"),
    ],
)
def test_options_out_of_range_are_refused(rule, options, message):
    with pytest.raises(ValueError, match=message):
        rule(**options)
