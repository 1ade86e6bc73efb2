"""Laws of every statistic that a registered rule or correction needs: one answer for every split and order."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tether.core import stretches
from tether.core.binned_quantile import BinnedQuantile
from tether.core.group_expectation import GroupExpectation
from tether.core.statistics import AbsoluteQuantile, Statistic, Statistics, measure
from tether.core.tokens import TokenBatch

from .batches import batches, every_correction, every_rule, every_scale

NEEDED = [s for _, plugin in (*every_rule(), *every_correction()) for s in plugin.traits.needs]
SCALED = [s for scale in every_scale() for s in scale.needs]
MORE = [*(AbsoluteQuantile(level) for level in (0.01, 0.5, 1.0)), BinnedQuantile(0.5, "turn", (1, 2))]
STATISTICS = list(dict.fromkeys([*NEEDED, *SCALED, *MORE]))
OF_RESPONSES = (GroupExpectation,)
"""Statistics about whole responses, which are never split over micro-batches."""
everyone = pytest.mark.parametrize("statistic", STATISTICS, ids=str)

TINY = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 1.17549435e-38, -1e-38]
numbers = st.one_of(
    st.sampled_from([*TINY, 0.25, -0.25, 0.1, 20.0, -20.0]), st.floats(-20.0, 20.0, width=32, allow_nan=False)
)


def tokens_like(d: Tensor, trainable: Tensor | None = None) -> TokenBatch:
    ids = torch.arange(len(d))
    return TokenBatch(
        logp_behavior=d,
        logp_proximal=d,
        advantage=d,
        trainable=torch.ones(len(d), dtype=torch.bool) if trainable is None else trainable,
        sequence=ids,
        group=ids,
        staleness=ids,
    )


def quantile_of(values: list[float], level: float) -> np.float32:
    d = torch.tensor(values, dtype=torch.float32)
    return measure([(d, tokens_like(d))], [AbsoluteQuantile(level)])[AbsoluteQuantile(level)].numpy()[()]


@everyone
@given(drawn=batches(), seed=st.integers(0, 2**31 - 1), pieces=st.integers(1, 6))
@settings(max_examples=30)
def test_any_split_and_order_gives_the_same_bits(statistic: Statistic, drawn, seed, pieces):
    tokens, logp = drawn
    d = logp - tokens.logp_behavior
    whole = measure([(d, tokens)], [statistic])[statistic]
    noise = torch.Generator().manual_seed(seed)
    place = torch.randint(pieces, (len(tokens),), generator=noise)
    if isinstance(statistic, OF_RESPONSES):
        place = place[tokens.sequence]
    parts = [(d[place == i], tokens.select(place == i)) for i in range(pieces)]
    parts = [parts[i] for i in torch.randperm(pieces, generator=noise)]
    assert measure(parts, [statistic])[statistic].equal(whole)


@everyone
@given(drawn=batches(), length=st.integers(1, 9))
@settings(max_examples=15)
def test_any_length_of_a_stretch_gives_the_same_bits(statistic: Statistic, drawn, length):
    tokens, logp = drawn
    d = logp - tokens.logp_behavior
    whole = measure([(d, tokens)], [statistic])[statistic]
    with mock.patch.object(stretches, "CPU_STRETCH", length):
        assert measure([(d, tokens)], [statistic])[statistic].equal(whole)


@everyone
@given(drawn=batches(), cut=st.integers(0, 12))
@settings(max_examples=20)
def test_ranks_reduce_like_micro_batches(statistic: Statistic, drawn, cut):
    tokens, logp = drawn
    d = logp - tokens.logp_behavior
    whole = measure([(d, tokens)], [statistic])[statistic]
    first = tokens.sequence < cut
    ranks = [[(d[side], tokens.select(side))] for side in (first, ~first)]
    sofar: tuple[Tensor, ...] = ()
    for _ in range(statistic.rounds):
        shares = [statistic.reduce([statistic.local(x, t, sofar) for x, t in parts]) for parts in ranks]
        sofar = (*sofar, statistic.reduce(shares))
    assert statistic.finish(sofar).equal(whole)


@everyone
@given(drawn=batches(), poison=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]))
@settings(max_examples=20)
def test_untrainable_tokens_are_not_counted(statistic: Statistic, drawn, poison):
    tokens, logp = drawn
    d = logp - tokens.logp_behavior
    spoiled = torch.where(tokens.trainable, d, poison)
    assert measure([(spoiled, tokens)], [statistic])[statistic].equal(measure([(d, tokens)], [statistic])[statistic])


@given(values=st.lists(numbers, min_size=1, max_size=60), level=st.sampled_from([0.25, 0.5, 0.75, 0.9, 1.0]))
@settings(max_examples=150)
def test_quantile_is_numpys_inverted_cdf_to_the_last_bit(values, level):
    wanted = np.quantile(np.abs(np.array(values, dtype=np.float32)), level, method="inverted_cdf")
    assert quantile_of(values, level).tobytes() == np.float32(wanted).tobytes()


@given(percent=st.integers(1, 1000), size=st.integers(1, 300))
@settings(max_examples=100)
def test_quantile_takes_the_exact_rank_at_every_decimal_level(percent, size):
    rank = math.ceil(Fraction(percent, 1000) * size)
    assert quantile_of([float(i) for i in range(size, 0, -1)], percent / 1000) == rank


def test_a_naive_product_would_take_the_wrong_rank():
    assert math.ceil(0.55 * 100) == 56
    assert quantile_of([float(i) for i in range(1, 101)], 0.55) == 55.0


@pytest.mark.parametrize(
    ("values", "answer"),
    [
        ([], 0.0),
        ([-0.5], 0.5),
        ([0.01 * i for i in range(1, 10)], 0.09),
        ([0.01 * i for i in range(1, 11)], 0.09),
        ([0.3] * 10, 0.3),
        ([0.0] * 9 + [0.5], 0.0),
        ([0.0] * 8 + [0.25, -0.25], 0.25),
    ],
    ids=["N=0", "N=1", "N=9", "N=10", "all equal", "nine zeros", "ties at q"],
)
def test_quantile_at_the_edges(values, answer):
    assert quantile_of(values, 0.9) == np.float32(answer)


def test_quantile_of_no_trainable_token_is_zero():
    d = torch.tensor([math.nan, 3.0])
    nobody = tokens_like(d, torch.zeros(2, dtype=torch.bool))
    assert measure([(d, nobody)], [AbsoluteQuantile(0.9)])[AbsoluteQuantile(0.9)] == 0.0


@pytest.mark.parametrize("level", [0.0, -0.1, 1.1, math.nan])
def test_quantile_refuses_a_level_outside_its_range(level):
    with pytest.raises(ValueError, match=r"quantile must lie in \(0, 1\]; got"):
        AbsoluteQuantile(level)


def test_duplicates_are_measured_once():
    calls = []

    @dataclasses.dataclass(frozen=True)
    class Count:
        rounds: int = 1

        def local(self, d: Tensor, tokens: TokenBatch, sofar: tuple[Tensor, ...]) -> Tensor:
            calls.append(len(d))
            return tokens.trainable.sum()

        def reduce(self, parts: list[Tensor]) -> Tensor:
            return torch.stack(list(parts)).sum()

        def finish(self, reduced: tuple[Tensor, ...]) -> Tensor:
            return reduced[0]

    d = torch.zeros(3)
    stats = measure([(d, tokens_like(d))], [Count(), Count()])
    assert stats[Count()] == 3
    assert calls == [3]


def test_a_statistic_that_nobody_measured_is_named_with_the_way_out():
    with pytest.raises(KeyError, match=r"was not measured .*nothing.*list it in the rule's `needs`"):
        Statistics({})[AbsoluteQuantile(0.9)]
