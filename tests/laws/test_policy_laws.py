"""Laws of every registered rule, correction and aggregation, at both ratio levels; new ones are found by name."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tether.core.algorithm import Algorithm
from tether.core.kl import K3
from tether.core.loss import measure_scope, policy_loss
from tether.core.memory import EdgeStatistics
from tether.core.ratio import edge_log_ratio
from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.surrogate import clipped
from tether.core.tokens import TokenBatch
from tether.registry import RULES

from .batches import (
    LEVELS,
    Drawn,
    algorithm_of,
    batches,
    built,
    counts,
    every_aggregation,
    every_algorithm,
    every_correction,
    every_rule,
    levels,
    split_by_response,
    terms_and_gradient,
    with_proximal,
)

ALGORITHMS = every_algorithm()
AGGREGATIONS = every_aggregation()
everywhere = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())
aggregations = st.sampled_from(list(AGGREGATIONS.values()))
few = settings(max_examples=15)

NOT_REINFORCE: dict[str, str] = {
    "gepo": "the denominator is the group's expectation, so the weight is mu(y) / E where pi = mu",
}
"""Rules whose on-policy gradient is not REINFORCE's by definition, and why."""


def assert_close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


# --- on-policy -------------------------------------------------------------------------------------------------------


@everywhere
@given(aggregation=aggregations, drawn=batches(spread=0.0))
@settings(max_examples=20)
def test_on_policy_gradient_is_reinforces_up_to_the_aggregations_weights(algorithm, aggregation, drawn):
    if algorithm.rule in [built(RULES, name) for name in NOT_REINFORCE]:
        pytest.skip("differs by definition")
    tokens, _ = drawn
    terms, gradient = terms_and_gradient(drawn, dataclasses.replace(algorithm, aggregation=aggregation))
    share = aggregation(tokens, counts([tokens]))
    assert_close(gradient, torch.where(tokens.trainable, -tokens.advantage * share, 0.0))
    assert terms.active.equal(tokens.trainable)


# --- untrainable tokens ----------------------------------------------------------------------------------------------


def poisoned(drawn: Drawn, poison: float) -> Drawn:
    """The same batch with the poison in every float field, and in logp, of every untrainable token."""
    tokens, logp = drawn

    def spoil(x: Tensor) -> Tensor:
        return torch.where(tokens.trainable, x, torch.tensor(poison)) if x.is_floating_point() else x

    fields = {f.name: spoil(x) for f in dataclasses.fields(tokens) if (x := getattr(tokens, f.name)) is not None}
    return dataclasses.replace(tokens, **fields), spoil(logp)


@everywhere
@given(drawn=batches(), poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30, -1e30]))
@settings(max_examples=25)
def test_untrainable_tokens_never_matter_in_value_or_gradient(algorithm, poison, drawn):
    algorithm = dataclasses.replace(algorithm, kl=K3(coefficient=0.1), entropy=0.01)
    clean, dirty = drawn, poisoned(drawn, poison)
    (loss, gradient, push), (loss_dirty, gradient_dirty, push_dirty) = (
        with_entropy(clean, algorithm),
        with_entropy(dirty, algorithm),
    )
    assert loss_dirty.equal(loss)
    assert gradient_dirty.equal(gradient)
    assert push_dirty.equal(push)


def with_entropy(drawn: Drawn, algorithm: Algorithm) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients in logp and in the policy's entropy; untrainable tokens' entropy is whatever their logp is."""
    tokens, logp = drawn
    tokens = with_proximal(tokens, algorithm)
    leaf = logp.clone().requires_grad_()
    entropy = torch.where(tokens.trainable, 0.5, logp).requires_grad_()
    stats = measure_scope(algorithm, [(logp, tokens)])
    loss = policy_loss(PolicyTokens(leaf, entropy), tokens, algorithm, stats, counts([tokens])).loss
    loss.backward()
    return loss.detach(), leaf.grad, entropy.grad


@dataclasses.dataclass(frozen=True)
class Creditless:
    """A rule that does not look at the advantage: an untrainable token, whose advantage is 0, would still count."""

    traits: ClassVar[Traits] = Traits()

    def __call__(self, log_ratio: Tensor, policy: PolicyTokens, tokens: TokenBatch, stats: Statistics) -> Surrogate:
        return Surrogate(objective=log_ratio.exp(), active=torch.ones_like(tokens.trainable))


@given(aggregation=aggregations, drawn=batches())
@few
def test_untrainable_tokens_do_not_matter_even_to_a_rule_that_ignores_the_advantage(aggregation, drawn):
    tokens, logp = drawn
    algorithm = algorithm_of(Creditless(), aggregation=aggregation)
    step = counts([tokens])
    terms, _ = terms_and_gradient(drawn, algorithm, denominator=step)
    kept, _ = terms_and_gradient((tokens.select(tokens.trainable), logp[tokens.trainable]), algorithm, denominator=step)
    assert_close(terms.loss, kept.loss)
    assert terms.active.equal(tokens.trainable)


@everywhere
def test_an_empty_micro_batch_gives_zero_and_keeps_the_graph(algorithm):
    nothing = torch.zeros(4)
    tokens = TokenBatch(
        logp_behavior=nothing,
        logp_proximal=nothing,
        logp_anchor=nothing,
        logp_old=nothing,
        logp_average=nothing,
        entropy_behavior=nothing,
        turn=torch.zeros(4, dtype=torch.int64),
        advantage=nothing,
        trainable=torch.zeros(4, dtype=torch.bool),
        sequence=torch.arange(4),
        group=torch.arange(4),
        staleness=torch.zeros(4, dtype=torch.int64),
    )
    for size in (4, 0):
        part = tokens.select(torch.arange(4) < size)
        terms, gradient = terms_and_gradient((part, torch.full((size,), math.nan)), algorithm)
        assert terms.loss == 0.0
        assert gradient.equal(torch.zeros(size))


# --- micro-batches ---------------------------------------------------------------------------------------------------


def check_micro_batches_add_up(algorithm: Algorithm, drawn: Drawn, cut: int) -> None:
    """The law: loss and gradient of a step are those of its micro-batches, however it was split (scope ``step``)."""
    parts = split_by_response(drawn, cut)
    whole, gradient = terms_and_gradient(drawn, algorithm)
    stats = measure_scope(algorithm, [(logp, with_proximal(t, algorithm)) for t, logp in parts])
    denominator = counts([t for t, _ in parts])
    shares = [terms_and_gradient(part, algorithm, stats, denominator) for part in parts]
    assert_close(torch.stack([terms.loss for terms, _ in shares]).sum(), whole.loss)
    assert_close(torch.cat([part for _, part in shares]), gradient)
    assert torch.cat([terms.active for terms, _ in shares]).equal(whole.active)


@everywhere
@given(aggregation=aggregations, drawn=batches(), cut=st.integers(0, 12))
@settings(max_examples=30)
def test_micro_batches_add_up_in_loss_and_gradient(algorithm, aggregation, drawn, cut):
    algorithm = dataclasses.replace(algorithm, aggregation=aggregation, kl=K3(coefficient=0.1))
    check_micro_batches_add_up(algorithm, drawn, cut)


@dataclasses.dataclass(frozen=True)
class OwnQuantile:
    """Wrong on purpose: its radius is a quantile of the micro-batch that it happens to see."""

    traits: ClassVar[Traits] = Traits()

    def __call__(self, log_ratio: Tensor, policy: PolicyTokens, tokens: TokenBatch, stats: Statistics) -> Surrogate:
        d = log_ratio.detach().abs()
        radius = d.quantile(0.5) if len(d) else torch.tensor(0.2)
        return clipped(log_ratio, tokens.advantage, (1.0 - radius, 1.0 + radius))


@pytest.mark.parametrize("level", LEVELS)
def test_a_rule_that_takes_a_quantile_of_its_own_micro_batch_breaks_the_split_law(level):
    @given(drawn=batches(spread=0.5), cut=st.integers(0, 12))
    @settings(max_examples=200, database=None, phases=[Phase.generate])
    def law(drawn: Drawn, cut: int) -> None:
        check_micro_batches_add_up(algorithm_of(OwnQuantile(), level=level), drawn, cut)

    with pytest.raises(AssertionError):
        law()


# --- extremes --------------------------------------------------------------------------------------------------------


@everywhere
@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["A>0", "A<0"])
@pytest.mark.parametrize("spread", [20.0, 1000.0])
@given(drawn=batches(spread=0.0), seed=st.integers(0, 2**31 - 1))
@settings(max_examples=6)
def test_log_ratios_up_to_a_thousand_stay_finite(algorithm, sign, spread, drawn, seed):
    tokens, logp = drawn
    noise = torch.Generator().manual_seed(seed)
    far = spread * (2 * torch.rand(logp.shape, generator=noise) - 1)
    near = 0.3 * spread * (2 * torch.rand(logp.shape, generator=noise) - 1)
    tokens = dataclasses.replace(
        tokens, advantage=sign * torch.ones_like(logp), logp_proximal=logp + near, logp_reference=logp - far
    )
    terms, gradient = terms_and_gradient((tokens, logp + far), dataclasses.replace(algorithm, kl=K3(coefficient=0.1)))
    assert terms.loss.isfinite()
    assert gradient.isfinite().all()
    for mark in terms.marks.values():
        assert mark.value.isfinite().all()


@everywhere
@given(drawn=batches(advantages=(0.0,)))
@few
def test_zero_advantage_gives_exactly_zero_gradient(algorithm, drawn):
    terms, gradient = terms_and_gradient(drawn, algorithm)
    assert terms.surrogate == 0.0
    assert not gradient.any()


@everywhere
@given(drawn=batches(advantages=(-2.0, -1.0, 0.5, 1.5)))
@few
def test_active_names_exactly_the_tokens_that_have_a_gradient(algorithm, drawn):
    terms, gradient = terms_and_gradient(drawn, algorithm)
    assert terms.active.equal(gradient != 0)


# --- order -----------------------------------------------------------------------------------------------------------


@everywhere
@given(drawn=batches(), seed=st.integers(0, 2**31 - 1))
@few
def test_the_order_of_tokens_does_not_matter(algorithm, drawn, seed):
    tokens, logp = drawn
    order = torch.randperm(len(tokens), generator=torch.Generator().manual_seed(seed))
    present = {f.name: x[order] for f in dataclasses.fields(tokens) if (x := getattr(tokens, f.name)) is not None}
    terms, gradient = terms_and_gradient(drawn, algorithm)
    mixed, mixed_gradient = terms_and_gradient((dataclasses.replace(tokens, **present), logp[order]), algorithm)
    assert_close(mixed.loss, terms.loss)
    assert_close(mixed_gradient, gradient[order])


# --- what carries gradient -------------------------------------------------------------------------------------------


@everywhere
@given(drawn=batches())
@few
def test_statistics_carry_no_gradient(algorithm, drawn):
    tokens, logp = drawn
    tokens = with_proximal(tokens, algorithm)
    attached = measure_scope(algorithm, [(logp.clone().requires_grad_(), tokens)])
    assert not any(x.requires_grad for s in attached.values() for x in s.values.values())
    leaves: EdgeStatistics = {
        edge: Statistics({key: x.clone().requires_grad_() for key, x in s.values.items()})
        for edge, s in attached.items()
    }
    leaf = logp.clone().requires_grad_()
    policy_loss(PolicyTokens(leaf), tokens, algorithm, leaves, counts([tokens])).loss.backward()
    assert all(x.grad is None or not x.grad.any() for s in leaves.values() for x in s.values.values())


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", [name for name, _ in every_correction()])
@given(drawn=batches())
@few
def test_weights_are_finite_nonnegative_and_carry_no_gradient(name, level, drawn):
    algorithm = ALGORITHMS[f"{name}-{level}"]
    tokens, logp = drawn
    tokens = with_proximal(tokens, algorithm)
    stats = measure_scope(algorithm, [(logp, tokens)])
    weight = torch.ones_like(logp)
    for correction in algorithm.corrections:
        quiet = tokens.neutralized()
        edge, own_level = correction.traits.ratio(level)
        alive = edge_log_ratio(edge, logp, quiet, own_level).requires_grad_()
        current = PolicyTokens(logp.clone().requires_grad_()).quiet(tokens.trainable)
        value = correction(alive, current, quiet, stats[correction.traits.measured(level)]).value
        assert value.isfinite().all()
        assert (value >= 0).all()
        assert not value.requires_grad, "a correction detaches its weight itself"
        assert not correction.traits.is_mask or ((value == 0) | (value == 1)).all()
        weight = weight * value
    _, gradient = terms_and_gradient((tokens, logp), algorithm, stats)
    leaf = logp.clone().requires_grad_()
    quiet = tokens.neutralized()
    traits = algorithm.rule.traits
    seen = edge_log_ratio(traits.reads, leaf, quiet, level)
    objective = algorithm.rule(seen, PolicyTokens(leaf), quiet, stats[traits.measured(level)]).objective
    (-(weight * objective)[tokens.trainable].sum()).backward()
    assert_close(gradient, leaf.grad)


@given(
    drawn=batches(spread=0.3),
    radii=st.tuples(st.floats(0.01, 0.9), st.floats(0.01, 3.0)),
    dual_clip=st.sampled_from([None, 1.5, 3.0]),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=60)
def test_gradient_of_the_clip_is_its_finite_difference_with_radii_frozen(drawn, radii, dual_clip, seed):
    tokens, logp = drawn
    d, advantage = (logp - tokens.logp_behavior).double(), tokens.advantage.double()
    shrink = torch.rand(len(tokens), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    bounds = (1.0 - radii[0] * shrink, 1.0 + radii[1] * shrink)
    leaf = d.clone().requires_grad_()
    clipped(leaf, advantage, bounds, dual_clip).objective.sum().backward()
    step = 1e-6
    above, below = (clipped(d + h, advantage, bounds, dual_clip).objective for h in (step, -step))
    kinks = torch.stack([d - bounds[0].log(), d - bounds[1].log(), d - math.log(dual_clip or 1e9)])
    smooth = (kinks.abs() > 10 * step).all(0)
    torch.testing.assert_close(leaf.grad[smooth], ((above - below) / (2 * step))[smooth], rtol=1e-6, atol=1e-8)


# --- pull-back -------------------------------------------------------------------------------------------------------


KEEPING = [(name, level) for name, rule in every_rule() if rule.traits.keeps_pull_back for level in levels(rule)]
PPOS = {"adaptive-radius", "ppo", "sat", "sat-edge"}
"""Rules that leave pull-back tokens exactly what PPO leaves them."""


@pytest.mark.parametrize(("name", "level"), [place for place in KEEPING if place[0] in PPOS])
@given(drawn=batches())
@few
def test_pull_back_gradients_are_ppos_to_the_last_bit(name, level, drawn):
    tokens, _ = drawn
    terms, gradient = terms_and_gradient(drawn, algorithm_of(built(RULES, name), level=level))
    _, wanted = terms_and_gradient(drawn, algorithm_of(built(RULES, "ppo"), level=level))
    inward = tokens.trainable & ~terms.outward
    assert gradient[inward].equal(wanted[inward])
    assert terms.active[inward].all()


@pytest.mark.parametrize(("name", "level"), KEEPING)
@given(drawn=batches(advantages=(-1.5, -1.0, 0.5, 2.0)))
@few
def test_a_rule_that_keeps_pull_back_leaves_it_a_gradient_of_the_right_sign(name, level, drawn):
    tokens, _ = drawn
    terms, gradient = terms_and_gradient(drawn, algorithm_of(built(RULES, name), level=level))
    inward = tokens.trainable & ~terms.outward
    assert (gradient[inward] * tokens.advantage[inward] < 0).all()
    assert terms.active[inward].all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("name", "correction"), every_correction(), ids=[name for name, _ in every_correction()])
@given(drawn=batches(advantages=(-1.0, 1.0)))
@few
def test_corrections_that_keep_pull_back_leave_it_a_gradient(name, correction, level, drawn):
    if not correction.traits.keeps_pull_back:
        pytest.skip("this correction says that it cuts them")
    tokens, _ = drawn
    terms, gradient = terms_and_gradient(drawn, ALGORITHMS[f"{name}-{level}"])
    inward = tokens.trainable & ~terms.outward
    assert (gradient[inward] != 0).all()
