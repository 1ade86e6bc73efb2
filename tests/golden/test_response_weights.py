"""Rules that weigh a response as a whole: VESPO, GMPO and GEPO."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from tether.core.aggregation import SeqMeanTokenMean
from tether.core.examples import tokens_of
from tether.core.loss import measure_scope
from tether.core.ratio import Ratio, edge_log_ratio
from tether.rules.gepo import GEPO
from tether.rules.gmpo import GMPO
from tether.rules.vespo import VESPO

from .tables import assert_close, inputs, label, log, loss_and_gradient, recipe, rows, tokens_with

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


@pytest.mark.parametrize("row", rows("GEPO"), ids=label)
def test_gepo_weighs_responses_against_the_expectation_of_their_group(row):
    """Two tokens a response, which share its log-probability unequally; each token counts a quarter."""
    shares = (0.3, 0.7)
    now, then = ([share * math.log(p) for p in row[column] for share in shares] for column in ("pi(y_i)", "mu(y_i)"))
    tokens = tokens_with(behavior=then, advantage=[1.0] * 4, sequence=[0, 0, 1, 1])
    tokens = dataclasses.replace(tokens, group=torch.full((4,), 7))
    algorithm = recipe(GEPO(), level="product", aggregation=SeqMeanTokenMean())
    (expectation,) = GEPO().traits.needs
    ids, log_expectation = measure_scope(algorithm, [(torch.tensor(now), tokens)])[Ratio("total", "product")][
        expectation
    ]
    assert_close(log_expectation[ids == 7].exp(), [row["Ehat"]] * 2)
    terms, gradient = loss_and_gradient(tokens, now, algorithm)
    weights = [w for w in row["GEPO weights"] for _ in shares]
    assert_close(gradient, [-w / 4 for w in weights])
    assert_close(terms.loss, -sum(w * x for w, x in zip(weights, now, strict=True)) / 4)
    ratios = edge_log_ratio("total", torch.tensor(now), tokens, "product").exp()
    assert_close(ratios[::2], row["sequence-IS weights"])


def test_gepo_by_length_compares_means_over_tokens():
    tokens = tokens_with(behavior=log([0.1, 0.4, 0.3]), advantage=[1.0] * 3, sequence=[0, 0, 1])
    tokens = dataclasses.replace(tokens, group=torch.zeros(3, dtype=torch.int64))
    _, gradient = loss_and_gradient(tokens, log([0.2, 0.2, 0.1]), recipe(GEPO(by_length=True), level="product"))
    expectation = (0.2**2 + 0.3**2) / (0.2 + 0.3)
    assert_close(gradient, [-0.2 / expectation, -0.2 / expectation, -0.1 / expectation])
