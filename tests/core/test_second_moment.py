"""The limit on |d| is what a search through all values finds, for every set of tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.core.examples import tokens_of
from tether.core.second_moment import FIXED, SecondMomentLimit
from tether.core.statistics import measure
from tether.corrections.m2po_elimination import M2POElimination
from tether.rules.m2po import M2PO

values = st.lists(
    st.one_of(
        st.sampled_from([0.0, 1e-30, 0.1, 0.2, -0.2, 0.2000001, 0.5, -0.5, 20.0, -20.0]),
        st.floats(-20, 20, width=32, allow_subnormal=False),
        st.floats(-0.5, 0.5, width=32, allow_subnormal=False),
    ),
    max_size=20,
)
budgets = st.sampled_from([1e-6, 0.01, 0.04, 0.25, 4.0, 400.0])


def limit_of(of: str, budget: float, d: list[float], advantage: list[float]) -> float:
    tokens, logp = tokens_of(log_ratio=d, advantage=advantage)
    limit = SecondMomentLimit(budget=budget, of=of)
    return float(measure([(logp, tokens)], [limit])[limit])


def squares(d: list[float]) -> dict[float, int]:
    """|d| in float32 -> d^2 in the fixed point in which both are compared."""
    exact = torch.tensor(d, dtype=torch.float32).abs().double().tolist()
    return {x: round(x * x * FIXED) for x in exact}


@given(drawn=st.lists(st.tuples(values, st.sampled_from([-2.0, 0.0, 1.0])), max_size=3), budget=budgets)
@settings(max_examples=200, deadline=None)
def test_capped_is_what_a_search_through_all_values_finds(drawn, budget):
    d = [x for part, _ in drawn for x in part]
    advantage = [a for part, a in drawn for _ in part]
    harmful = [abs(x) for x, a in zip(torch.tensor(d).tolist(), advantage, strict=True) if x * a > 0]
    square = squares(harmful)
    most = int(budget * FIXED * len(harmful))
    if sum(square[x] for x in harmful) <= most:
        wanted = math.inf
    else:
        fitting = [x for x in harmful if sum(min(square[y], square[x]) for y in harmful) <= most]
        wanted = max(fitting, default=0.0)
    assert limit_of("capped", budget, d, advantage) == wanted


@given(d=values, budget=budgets)
@settings(max_examples=200, deadline=None)
def test_kept_is_what_a_search_through_all_values_finds(d, budget):
    sizes = [abs(x) for x in torch.tensor(d).tolist()]
    square = squares(sizes)

    def fits(x: float) -> bool:
        kept = [y for y in sizes if y <= x]
        return sum(square[y] for y in kept) < int(budget * FIXED * len(kept))

    exceeds = sizes and not fits(max(sizes))
    wanted = max((x for x in sizes if fits(x)), default=min(sizes)) if exceeds else math.inf
    assert limit_of("kept", budget, d, [1.0] * len(d)) == wanted


@pytest.mark.parametrize("make", [M2PO, M2POElimination])
@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan, math.inf])
def test_a_budget_out_of_range_is_refused(make, budget):
    with pytest.raises(ValueError, match=r"of a second moment must lie in \[1e-06, 400\] \(0.04 is usual\); got"):
        make(budget=budget)


@pytest.mark.parametrize("floor", [(1.1, 1.5), (-0.1, 1.5), (0.7, 0.9), (0.7, math.inf), (math.nan, 1.5)])
def test_a_floor_that_is_no_interval_around_one_is_refused(floor):
    with pytest.raises(ValueError, match="floor of m2po must be an interval around 1"):
        M2PO(floor=floor)
