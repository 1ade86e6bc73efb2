"""Pass rates: what a brute-force sum gives, whatever the order; old weights count less; a state says everything."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.pipeline.pass_rates import FORGOTTEN, PassRates

GROUPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(1, 8), st.integers(0, 300)), max_size=30
).map(lambda groups: [(name, min(right, answers), answers, version) for name, right, answers, version in groups])
HALF_LIVES = st.floats(1.0, 500.0)


def rates_of(groups, half_life: float) -> PassRates:
    rates = PassRates(half_life)
    for name, right, answers, version in groups:
        rates.add(name, right=right, answers=answers, version=version)
    return rates


def brute(groups, name: str, half_life: float, updates: int) -> tuple[float, float, float]:
    """Right answers, answers and groups, each weighed by its own age."""
    mine = [(2 ** ((version - updates) / half_life), r, n) for problem, r, n, version in groups if problem == name]
    return sum(w * r for w, r, _ in mine), sum(w * n for w, _, n in mine), sum(w for w, _, _ in mine)


@given(GROUPS, HALF_LIVES, st.integers(0, 100))
def test_an_estimate_is_the_weighted_sum_over_all_groups(groups, half_life, later):
    rates, updates = rates_of(groups, half_life), 300 + later
    for name in "abc":
        right, answers, weight = brute(groups, name, half_life, updates)
        assert rates.evidence(name, updates) == pytest.approx(weight, rel=1e-9)
        assert rates.guess(name, updates, 0.5) == pytest.approx((right + 0.5) / (answers + 1), rel=1e-9)
        at_newest = brute(groups, name, half_life, max((v for n, _, _, v in groups if n == name), default=0))
        expected = at_newest[0] / at_newest[1] if at_newest[1] else None
        assert rates.rate(name) == (None if expected is None else pytest.approx(expected, rel=1e-9))


@given(GROUPS, HALF_LIVES, st.randoms())
def test_the_order_in_which_groups_finish_does_not_matter(groups, half_life, numbers):
    shuffled = numbers.sample(groups, len(groups))
    one, other = rates_of(groups, half_life), rates_of(shuffled, half_life)
    for name in "abc":
        expected = other.rate(name)
        assert one.rate(name) == (None if expected is None else pytest.approx(expected, rel=1e-9))
        assert one.evidence(name, 300) == pytest.approx(other.evidence(name, 300), rel=1e-9)


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(0, 300)), min_size=1), HALF_LIVES, st.booleans())
def test_always_right_is_one_and_never_right_is_zero_to_the_last_bit(groups, half_life, is_right):
    rates = rates_of([("a", n * is_right, n, version) for n, version in groups], half_life)
    assert rates.rate("a") == float(is_right)


@given(GROUPS, HALF_LIVES)
def test_a_state_goes_round(groups, half_life):
    rates, again = rates_of(groups, half_life), PassRates(half_life)
    again.restore(rates.state())
    assert again.state() == rates.state()
    assert sorted(again) == sorted(rates)


def test_a_group_of_old_weights_says_less_than_one_of_new_weights():
    rates = rates_of([("a", 4, 4, 0), ("a", 0, 4, 64)], half_life=32.0)
    assert rates.rate("a") == 0.25 / 1.25
    assert rates.evidence("a", 64) == 1.25
    assert rates.evidence("a", 128) == 1.25 / 4
    assert rates.guess("a", 64 + 10_000, 0.5) == 0.5


def test_what_has_faded_is_forgotten_unless_somebody_keeps_it():
    rates = rates_of([("a", 1, 2, 0), ("b", 1, 2, 0), ("c", 1, 2, 79)], half_life=8.0)
    assert rates.evidence("a", 81) < FORGOTTEN <= rates.evidence("a", 80)
    rates.forget(80, keep=lambda name: False)
    assert len(rates) == 3
    rates.forget(81, keep=lambda name: name == "b")
    assert [rates.rate(name) for name in "abc"] == [None, 0.5, 0.5]
