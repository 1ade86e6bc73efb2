"""Responses as units: GSPO, SAT-GSPO, and what a token weight does inside a response."""

from __future__ import annotations

import math

import pytest

from tether.core.aggregation import SeqMeanTokenMean, SeqMeanTokenSum, TokenMean
from tether.core.examples import tokens_of
from tether.core.loss import measure_scope
from tether.core.ratio import Ratio, edge_log_ratio
from tether.core.statistics import AbsoluteQuantile
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

from .tables import Given, assert_close, inputs, label, loss_and_gradient, recipe, rows, tokens_with

GSPO_TABLE = "GSPO eps=.2 (gradient per token of that response)"
Q = AbsoluteQuantile(0.9)


def responses(d: list[list[float]], advantage: list[float]):
    """Tokens of responses with these token log-ratios, one advantage a response."""
    ids = [b for b, row in enumerate(d) for _ in row]
    return tokens_of(
        log_ratio=[x for row in d for x in row], advantage=[float(advantage[b]) for b in ids], sequence=ids
    )


def level_responses(s: list[float], length: int, advantage: float = 1.0):
    """Responses of one length whose every token has the log-ratio of its response."""
    return responses([[x] * length for x in s], [advantage] * len(s))


def gated(tokens, logp) -> tuple[float, int]:
    """q and the number of gated tokens of SAT at level ``sequence``, from its own marks."""
    algorithm = recipe(SAT(), level="sequence")
    terms, _ = loss_and_gradient(tokens, logp, algorithm)
    q = measure_scope(algorithm, [(logp, tokens)])[Ratio("clipped", "sequence")][Q]
    return float(q), int(terms.marks["sat/gate_fraction"].value.sum())


@pytest.mark.parametrize("row", rows(GSPO_TABLE), ids=label)
def test_gspo_loss_and_gradient_of_one_response(row):
    given = inputs(GSPO_TABLE)
    d, a = given["d"][row["b"]], given["A"][row["b"]]
    assert (len(d), a) == (row["T"], row["A"])
    tokens, logp = responses([d], [a])
    rule = PPO(epsilon_low=given["eps_low"], epsilon_high=given["eps_high"])
    terms, gradient = loss_and_gradient(tokens, logp, recipe(rule, level="sequence", aggregation=SeqMeanTokenMean()))
    seen = edge_log_ratio("total", logp.detach(), tokens, "sequence")
    assert_close(seen, [row["mean d"]] * len(d))
    assert_close(seen.exp(), [row["rho_seq"]] * len(d))
    assert_close(terms.loss, row["L_b"])
    assert_close(gradient, [row["dL_b/dlogp_t"]] * len(d))
    assert_close((seen * len(d)).exp()[0], row["un-normalised product ratio"])


def test_luspo_is_gspo_under_seq_mean_token_sum():
    name = "LUSPO on the GSPO responses, S=3"
    given = inputs(name)
    tokens, logp = responses(given["d"], given["A"])
    rule = PPO(epsilon_low=given["eps_low"], epsilon_high=given["eps_high"])
    algorithm = recipe(rule, level="sequence", aggregation=SeqMeanTokenSum())
    terms, gradient = loss_and_gradient(tokens, logp, algorithm)
    for row in rows(name):
        own = tokens.sequence == row["b"]
        assert_close(gradient[own], [row["dL/dlogp_t"]] * row["T"])
        alone, _ = loss_and_gradient(tokens.select(own), logp[own], algorithm)
        assert_close(alone.loss / 3, row["T_b L_b / S"])
        assert_close(alone.loss / row["T"], row["L_b"])
        assert_close(terms.loss, row["L"])


def test_quantile_runs_over_broadcast_scalars():
    (row,) = rows("SAT-GSPO quantile on broadcast scalars")
    tokens, logp = responses(inputs("SAT-GSPO quantile on broadcast scalars")["d"], [1.0, 1.0, -1.0])
    seen = edge_log_ratio("total", logp.detach(), tokens, "sequence")
    assert len(tokens) == row["tokens"]
    assert_close(seen.abs().sort().values, row["sorted abs(s)"])
    q, count = gated(tokens, logp)
    assert_close(q, row["q"])
    assert count == row["#gated"]


@pytest.mark.parametrize("row", rows("SAT-GSPO fires: 12 responses x 10 tokens"), ids=lambda row: f"A={row['A']}")
def test_sat_gspo_cuts_the_hot_response(row):
    given = inputs("SAT-GSPO fires: 12 responses x 10 tokens")
    length, options = given["tokens_per_response"], {"epsilon_low": given["eps_low"], "epsilon_high": given["eps_high"]}
    tokens, logp = level_responses([*given["s_other"], row["s_hot"]], length, row["A"])
    hot = tokens.sequence == len(given["s_other"])
    q, count = gated(tokens, logp)
    assert_close(q, row["q"])
    assert count == row["#gated tokens"]
    for column, rule in (("GSPO", PPO(**options)), ("SAT", SAT(**options))):
        # responses of one length: a response's mean over its tokens is 1/length of the sum
        terms, gradient = loss_and_gradient(tokens, logp, recipe(rule, level="sequence"))
        others, _ = loss_and_gradient(
            tokens.select(~hot), logp[~hot], recipe(PPO(**options), level="sequence")
        )  # none of them is cut by either rule
        assert_close((terms.loss - others.loss) / length, row[f"L_{column}"])
        assert_close(gradient[hot] / length, [row[f"g{column}"]] * length)
    assert_close(math.exp(row["s_hot"]), row["rho"])
    algorithm = recipe(SAT(**options), level="sequence")
    marks = loss_and_gradient(tokens, logp, algorithm)[0].marks
    moved, end = ("c+", 1 + given["eps_high"] * row["c+"]) if row["A"] > 0 else ("c-", 1 - given["eps_low"] * row["c-"])
    assert_close(marks["sat/mean_contraction"].value[hot], [row[moved]] * length)
    assert_close(end, row["1+eps_high~" if row["A"] > 0 else "1-eps_low~"])


def test_sat_gspo_is_inert_if_the_hottest_response_holds_over_a_tenth_of_the_tokens():
    given = inputs("SAT-GSPO inert: 4 responses x 1000 tokens")
    (row,) = rows("SAT-GSPO inert: 4 responses x 1000 tokens")
    q, count = gated(*level_responses(given["s"], given["tokens_per_response"]))
    assert_close(q, row["q"])
    assert count == row["#gated"]


@pytest.mark.parametrize("row", rows("SAT-GSPO, n responses x 100 tokens, s = .01 (1..n)"), ids=label)
def test_sat_gspo_fires_from_ten_equal_responses_on(row):
    length = inputs("SAT-GSPO, n responses x 100 tokens, s = .01 (1..n)")["tokens_per_response"]
    tokens, logp = level_responses([0.01 * i for i in range(1, row["responses"] + 1)], length)
    assert len(tokens) == row["tokens"]
    q, count = gated(tokens, logp)
    assert_close(q, row["q"])
    assert count == row["#gated tokens"]


@pytest.mark.parametrize("row", rows("GSPO x token weights (T=2, rho=1, A=1): dL/dlp"), ids=label)
def test_a_token_weight_touches_its_token_alone(row):
    """The token form: column (b). In form (a) a masked token would still be trained."""
    given = inputs("GSPO x token weights (T=2, rho=1, A=1): dL/dlp")
    tokens = tokens_with(behavior=given["rlp"], advantage=[given["A"]] * 2, sequence=[0, 0])
    factor = Given(tuple(row["w"]), is_mask=True)
    algorithm = recipe(PPO(), level="sequence", corrections=(factor,), aggregation=TokenMean())
    _, gradient = loss_and_gradient(tokens, given["lp"], algorithm)
    assert_close(gradient, row["(b) GSPO-token straight-through"])
