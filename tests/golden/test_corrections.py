"""Weights and masks on their worked numbers, alone and inside a loss."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from tether.core.aggregation import TokenMean
from tether.core.divergences import bernoulli_kl
from tether.core.ratio import edge_log_ratio
from tether.core.rule import Correction, PolicyTokens
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.corrections.decoupled import Decoupled
from tether.corrections.estr import ESTR, score
from tether.corrections.icepop import IcePop
from tether.corrections.kpop import KPop
from tether.corrections.opsm import OPSM
from tether.corrections.seqclip import SeqClip
from tether.corrections.tis import TIS
from tether.corrections.trm import TRM
from tether.rules.ppo import PPO

from .tables import assert_close, inputs, label, log, loss_and_gradient, recipe, rows, tokens_with


def weight_of(correction: Correction, tokens: TokenBatch, logp: Tensor | list[float], level: str = "token") -> Tensor:
    """What a correction says, handed the log-ratio that it asks for."""
    current = torch.as_tensor(logp, dtype=torch.float32)
    edge, own_level = correction.traits.ratio(level)
    seen = edge_log_ratio(edge, current, tokens, own_level)
    return correction(seen, PolicyTokens(current), tokens, Statistics({})).value


def proximal_at(log_k: list[float], sequence: list[int] | None = None) -> TokenBatch:
    """Tokens whose proximal policy stands this far above the behavior policy."""
    return tokens_with(behavior=[0.0] * len(log_k), proximal=log_k, advantage=[1.0] * len(log_k), sequence=sequence)


# --- by token --------------------------------------------------------------------------------------------------------

TOKEN_SET = "TIS / IcePop / KPop on the token set"


def token_set() -> tuple[TokenBatch, list[float]]:
    table = rows("per-token inputs")[: len(rows(TOKEN_SET))]
    column = {name: [row[name] for row in table] for name in ("mu", "mutilde", "pi", "A")}
    tokens = tokens_with(behavior=log(column["mu"]), proximal=log(column["mutilde"]), advantage=column["A"])
    return tokens, log(column["pi"])


def test_icepop_on_the_token_set():
    table, given = rows(TOKEN_SET), inputs(TOKEN_SET)
    band = {"alpha": given["icepop_low"], "beta": given["icepop_high"]}
    tokens, logp = token_set()
    assert_close(weight_of(IcePop(**band), tokens, logp), [row["IcePop weight"] for row in table])
    assert_close(weight_of(IcePop(**band, form="mask"), tokens, logp), [row["IcePop 0/1"] for row in table])


def test_kpop_on_the_token_set():
    table = rows(TOKEN_SET)
    tokens, logp = token_set()
    for column, one in (("KPop max-dir(mutilde,mu)", tokens.logp_proximal), ("max-dir(pi,mu)", torch.tensor(logp))):
        both = bernoulli_kl(one, tokens.logp_behavior), bernoulli_kl(tokens.logp_behavior, one)
        torch.testing.assert_close(  # probabilities come back from float32 logarithms: d^2 of the nearest token is 2e-3
            torch.maximum(*both),
            torch.tensor([row[column] for row in table], dtype=torch.float64),
            rtol=1e-5,
            atol=1e-7,
        )
    assert_close(weight_of(KPop(phi=0.5), tokens, logp), [row["keep phi=.5"] for row in table])
    assert_close(weight_of(KPop(phi=0.1, edge="total"), tokens, logp), [row["keep phi=.1"] for row in table])


def test_icepop_and_tis_at_their_edges():
    table, given = rows("IcePop/TIS edges"), inputs("IcePop/TIS edges")
    tokens = proximal_at(log([row["k"] for row in table]))
    band = IcePop(alpha=given["icepop_low"], beta=given["icepop_high"])
    assert_close(weight_of(band, tokens, [0.0] * len(table)), [row["IcePop"] for row in table])
    for cap in (2.0, 5.0):
        assert_close(weight_of(TIS(cap=cap), tokens, [0.0] * len(table)), [row[f"TIS C={cap:g}"] for row in table])


@pytest.mark.parametrize("k", [0.5, 2.0])
def test_the_band_of_icepop_is_closed(k):
    """An end of the band handed in as it is: 2 and 1/2 come out of log and exp unharmed."""
    tokens = proximal_at(log([k]))
    assert weight_of(IcePop(alpha=0.5, beta=2.0), tokens, [0.0]).item() == k


@pytest.mark.parametrize(
    ("level", "name"), [("token", "token"), ("product", "sequence (sum)"), ("sequence", "geometric")]
)
@pytest.mark.parametrize("of_the_recipe", ["token", "sequence"])
def test_tis_at_a_level_of_its_own(of_the_recipe, level, name):
    given = inputs("TIS levels, log k = .3,.2,.4")
    wanted = {row["level"]: row["weight per token"] for row in rows("TIS levels, log k = .3,.2,.4")}
    tokens = proximal_at(given["log_k"], [0, 0, 0])
    assert_close(weight_of(TIS(cap=given["C"], level=level), tokens, [0.0] * 3, of_the_recipe), wanted[name])
    assert_close(weight_of(TIS(cap=given["C"]), tokens, [0.0] * 3, level), wanted[name])


@pytest.mark.parametrize("row", rows("KPop"), ids=lambda row: f"{row['p_train']}, {row['p_rollout']}")
def test_kpop_keeps_a_token_within_phi_both_ways(row):
    train, rollout = log([row["p_train"]]), log([row["p_rollout"]])
    tokens = tokens_with(behavior=rollout, proximal=train, advantage=[1.0])
    assert_close(bernoulli_kl(tokens.logp_proximal, tokens.logp_behavior), [row["KL(p,q)"]])
    assert_close(bernoulli_kl(tokens.logp_behavior, tokens.logp_proximal), [row["KL(q,p)"]])
    assert_close((tokens.logp_proximal - tokens.logp_behavior).exp(), [row["ratio"]])
    for phi in (0.1, 0.5, 0.75, 2.0):
        kept = row[f"keep phi={phi:g}".replace("0.", ".")]
        assert_close(weight_of(KPop(phi=phi), tokens, [0.0]), [kept])
        by_old = dataclasses.replace(tokens, logp_old=tokens.logp_proximal, logp_proximal=tokens.logp_behavior)
        assert_close(weight_of(KPop(phi=phi, edge="engine"), by_old, [0.0]), [kept])


@pytest.mark.parametrize("row", rows("ESTR eps=.01"), ids=lambda row: f"d={row['delta']}, H={row['H']}")
def test_estr_keeps_what_its_entropy_allows(row):
    epsilon = inputs("ESTR eps=.01")["eps"]
    tokens = tokens_with(behavior=[0.0], advantage=[1.0])
    tokens = dataclasses.replace(tokens, entropy_behavior=torch.tensor([row["H"]]))
    d = torch.tensor([row["delta"]])
    assert_close(score(d, tokens.entropy_behavior, epsilon), [row["S"]])
    assert_close(d.exp(), [row["ratio"]])
    for tau in (1.0, 0.25):
        kept = weight_of(ESTR(threshold=tau, epsilon=epsilon), tokens, d)
        assert_close(kept, [row[f"keep tau={tau:g}".replace("0.", ".")]])
    edge, strict = row["max abs(delta) at tau=1"], ESTR(threshold=1.0, epsilon=epsilon)
    assert weight_of(strict, tokens, [0.9999 * edge]).item() == 1.0
    assert weight_of(strict, tokens, [-1.0001 * edge]).item() == 0.0


def test_tokens_that_estr_drops_stay_in_the_denominator():
    (row,) = rows("ESTR normaliser")
    given, epsilon = inputs("ESTR normaliser"), 1e-4
    tokens = tokens_with(behavior=[0.0] * 4, advantage=[given["A"]] * 4, sequence=[0] * 4)
    entropy = given["d"] ** 2 / torch.tensor(row["S list"]) - epsilon
    algorithm = recipe(PPO(), corrections=(ESTR(threshold=row["tau"], epsilon=epsilon),), aggregation=TokenMean())
    tokens = dataclasses.replace(tokens, entropy_behavior=entropy)
    assert_close(score(torch.full((4,), given["d"]), entropy, epsilon), row["S list"])
    terms, _ = loss_and_gradient(tokens, [given["d"]] * 4, algorithm)
    assert_close(1 - terms.active.double().mean(), row["rho_mask"])
    assert_close(terms.loss, row["sum of kept -A r, divided by tokens"])


def test_an_entropy_below_zero_is_a_rounding_error_of_zero():
    assert score(torch.tensor([0.05]), torch.tensor([-1e-3]), 0.01) == score(torch.tensor([0.05]), torch.zeros(1), 0.01)


# --- by response -----------------------------------------------------------------------------------------------------

SEQCLIP = "SeqClip [.995,1.005], A=+1"


@pytest.mark.parametrize("row", rows(SEQCLIP), ids=label)
def test_seqclip_times_gspos_clip(row):
    given = inputs(SEQCLIP)
    spread = [-0.3, 0.1, 0.2]  # token log-ratios of one response around their mean
    logp = [math.log(row["rho_seq"]) + x for x in spread]
    tokens = tokens_with(behavior=[0.0] * 3, advantage=[given["A"]] * 3, sequence=[0] * 3)
    band = {"alpha": given["low"], "beta": given["high"]}
    for closed, column in ((True, "keep (closed)"), (False, "keep (open variant)")):
        assert_close(weight_of(SeqClip(**band, closed=closed), tokens, logp), [row[column]] * 3)
    rule = PPO(epsilon_low=given["eps_low"], epsilon_high=given["eps_high"])
    algorithm = recipe(rule, level="sequence", corrections=(SeqClip(**band),), aggregation=TokenMean())
    assert_close(loss_and_gradient(tokens, logp, algorithm)[0].loss, row["L_b"])


@pytest.mark.parametrize(("closed", "kept"), [(True, 1.0), (False, 0.0)])
def test_an_end_of_the_band_belongs_to_it_unless_seqclip_is_open(closed, kept):
    rule = SeqClip(alpha=0.5, beta=2.0, closed=closed)
    for end in (0.5, 2.0):
        tokens = tokens_with(behavior=[0.0], advantage=[1.0])
        assert weight_of(rule, tokens, log([end])).item() == kept


@pytest.mark.parametrize("row", rows("OPSM delta=1e-4"), ids=lambda row: f"A={row['A']}, mean={row['mean(x-lp)']}")
def test_opsm_drops_bad_responses_that_have_become_unlikely(row):
    logp = [-row["mean(x-lp)"] + x for x in (-0.01, 0.01)]
    tokens = tokens_with(behavior=[0.0] * 2, advantage=[row["A"]] * 2, sequence=[0] * 2)
    delta = inputs("OPSM delta=1e-4")["delta"]
    assert_close(weight_of(OPSM(delta=delta), tokens, logp), [row["keep"]] * 2)
    update = dataclasses.replace(tokens, logp_old=tokens.logp_behavior, logp_behavior=torch.full((2,), -3.0))
    assert_close(weight_of(OPSM(delta=delta, edge="update"), update, logp), [row["keep"]] * 2)


@pytest.mark.parametrize("row", rows("TRM delta=.05"), ids=lambda row: str(row["token KL"]))
def test_trm_drops_the_response_of_a_single_far_token(row):
    """KL(.5 || p) = -log(4 p (1 - p)) / 2, solved for p."""
    kl = torch.tensor(row["token KL"], dtype=torch.float64)
    p = 0.5 * (1 + (1 - (-2 * kl).exp()).sqrt())
    n = len(p)
    tokens = tokens_with(behavior=log([0.5] * n), advantage=[1.0] * n, sequence=[0] * n)
    logp = p.log().float()
    delta = inputs("TRM delta=.05")["delta"]
    assert_close(bernoulli_kl(tokens.logp_behavior, logp), row["token KL"])
    assert_close(weight_of(TRM(delta=delta), tokens, logp), [row["keep"]] * n)
    mirrored = dataclasses.replace(tokens, logp_behavior=logp)
    assert_close(
        weight_of(TRM(delta=delta, direction="current-behavior"), mirrored, tokens.logp_behavior), [row["keep"]] * n
    )


def test_trm_keeps_a_response_exactly_at_delta_and_leaves_others_alone():
    tokens = tokens_with(behavior=log([0.5] * 3), advantage=[1.0] * 3, sequence=[0, 1, 1])
    logp = torch.tensor(log([0.55, 0.6, 0.7]))
    kl = bernoulli_kl(tokens.logp_behavior, logp)
    assert weight_of(TRM(delta=float(kl[0])), tokens, logp).tolist() == [1.0, 0.0, 0.0]
    assert weight_of(TRM(delta=float(kl[2])), tokens, logp).tolist() == [1.0, 1.0, 1.0]


# --- decoupled PPO ---------------------------------------------------------------------------------------------------

DECOUPLED = "decoupled PPO (eps=.2, cap 100)"


def decoupled_case(row) -> tuple[TokenBatch, list[float]]:
    return tokens_with(behavior=log([row["mu"]]), proximal=log([row["prox"]]), advantage=[row["A"]]), log([row["pi"]])


@pytest.mark.parametrize("row", rows(DECOUPLED), ids=label)
def test_decoupled_ppo_caps_the_product_of_weight_and_ratio(row):
    given = inputs(DECOUPLED)
    tokens, logp = decoupled_case(row)
    rule = PPO(epsilon_low=given["eps_low"], epsilon_high=given["eps_high"])
    terms, gradient = loss_and_gradient(tokens, logp, recipe(rule, corrections=(Decoupled(cap=given["C"]),)))
    assert_close(terms.weights["decoupled"], [row["w_C"]])
    assert_close(weight_of(Decoupled(cap=1e18), tokens, logp), [row["w=prox/mu"]])
    assert_close(edge_log_ratio("clipped", torch.tensor(logp), tokens, "token").exp(), [row["u=pi/prox"]])
    assert_close(edge_log_ratio("total", torch.tensor(logp), tokens, "token").exp(), [row["r"]])
    assert_close(terms.loss, row["L"])
    assert_close(gradient, [row["dL/dlogp"]])


@pytest.mark.parametrize("cap", [1.05, 100.0])
@pytest.mark.parametrize("row", rows(DECOUPLED), ids=label)
def test_the_cap_is_hiltons_adjusted_behavior_in_value_and_gradient(row, cap):
    """``max(-A e^(lp - adj), -A e^(clip(lp - xlp) + xlp - adj))`` with ``adj = max(mu, lp - log cap)``, detached."""
    given = inputs(DECOUPLED)
    tokens, logp = decoupled_case(row)
    rule = PPO(epsilon_low=given["eps_low"], epsilon_high=given["eps_high"])
    terms, gradient = loss_and_gradient(tokens, logp, recipe(rule, corrections=(Decoupled(cap=cap),)))
    leaf = torch.tensor(logp, requires_grad=True)
    adjusted = torch.maximum(tokens.logp_behavior, leaf.detach() - math.log(cap))
    moved = (leaf - tokens.logp_proximal).clamp(math.log1p(-given["eps_low"]), math.log1p(given["eps_high"]))
    own, held = (leaf - adjusted).exp(), (moved + tokens.logp_proximal - adjusted).exp()
    loss = torch.maximum(-tokens.advantage * own, -tokens.advantage * held).sum()
    loss.backward()
    assert_close(terms.loss, loss.item())
    assert_close(gradient, leaf.grad)


def test_a_bound_on_the_weight_itself_comes_on_top():
    tokens = tokens_with(behavior=[0.0], proximal=log([3.0]), advantage=[1.0])
    assert_close(weight_of(Decoupled(w_max=2.0), tokens, log([3.0])), [2.0])
    assert_close(weight_of(Decoupled(cap=1.5, w_max=2.0), tokens, log([3.0])), [1.5])


def test_the_cap_bounds_the_ratio_of_the_response_at_its_level():
    """Token ratios 9 and 1: the response's is 3, so that a cap of 4 binds the token alone."""
    tokens = tokens_with(behavior=[0.0] * 2, proximal=[0.0] * 2, advantage=[1.0] * 2, sequence=[0, 0])
    logp = log([9.0, 1.0])
    assert_close(weight_of(Decoupled(cap=4.0), tokens, logp), [4 / 9, 1.0])
    assert_close(weight_of(Decoupled(cap=4.0, level="sequence"), tokens, logp, "sequence"), [1.0, 1.0])
