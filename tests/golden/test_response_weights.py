"""Rules that weigh a response as a whole: VESPO and GMPO."""

from __future__ import annotations

import math

import pytest

from tether.core.aggregation import SeqMeanTokenMean
from tether.core.examples import tokens_of
from tether.rules.gmpo import GMPO
from tether.rules.vespo import VESPO

from .tables import assert_close, inputs, label, loss_and_gradient, recipe, rows

GMPO_TABLE = "GMPO, log r=[0.1, 0.6, -0.2], log-clip .4"


@pytest.mark.parametrize("row", rows("VESPO phi(W)"), ids=label)
@pytest.mark.parametrize(("sign", "column"), [(1.0, "A>=0 (k=2,lam=3)"), (-1.0, "A<0 (k=3,lam=2)")])
def test_vespo_weighs_a_response_by_the_product_of_its_ratios(row, sign, column):
    tokens, logp = tokens_of(
        log_ratio=[0.25 * math.log(row["W"]), 0.75 * math.log(row["W"])], advantage=[sign] * 2, sequence=[0, 0]
    )
    terms, gradient = loss_and_gradient(tokens, logp, recipe(VESPO(), level="product"))
    assert_close(gradient, [-sign * row[column]] * 2)
    assert_close(terms.loss, -sign * row[column] * logp.detach().sum())


@pytest.mark.parametrize("row", rows(GMPO_TABLE), ids=lambda row: f"A={row['A']}")
def test_gmpo_averages_clipped_log_ratios(row):
    given = inputs(GMPO_TABLE)
    n = len(given["d"])
    tokens, logp = tokens_of(log_ratio=given["d"], advantage=[row["A"]] * n, sequence=[0] * n)
    mean = {"aggregation": SeqMeanTokenMean()}
    terms, gradient = loss_and_gradient(tokens, logp, recipe(GMPO(log_clip=given["log_clip"]), **mean))
    assert_close(terms.loss, row["L_b"])
    assert_close(terms.loss, -row["A"] * row["ratio"])
    assert_close(gradient, row["dL_b/dlogp_t"])
    open_terms, _ = loss_and_gradient(tokens, logp, recipe(GMPO(log_clip=20.0), **mean))
    assert_close(open_terms.loss, -row["A"] * row["unclipped geometric mean"])
