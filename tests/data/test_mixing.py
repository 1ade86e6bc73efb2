"""Turns of sources in exact proportion, and orders that depend on a name only."""

from hypothesis import given
from hypothesis import strategies as st

from tether.data.mixing import Mix, shuffled

WEIGHTS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def turns(mix: Mix, count: int) -> list[tuple[int, int]]:
    return [mix.turn(index) for index in range(count)]


@given(WEIGHTS)
def test_every_period_has_exactly_the_shares_and_every_stretch_nearly(weights):
    mix = Mix.of([float(weight) for weight in weights])
    period, total = sum(mix.counts), sum(weights)
    had = [0] * len(weights)
    for index, (source, before) in enumerate(turns(mix, 2 * period), 1):
        assert before == had[source]
        had[source] += 1
        for s, weight in enumerate(weights):
            share = weight / total
            assert abs(had[s] - index * share) <= (1 + len(weights) * share) / 2 + 1e-9
    assert [2 * period * weight for weight in weights] == [count * total for count in had]


@given(WEIGHTS, st.integers(0, 10**6))
def test_a_turn_is_a_pure_function_of_its_index(weights, index):
    one, other = (Mix.of([float(weight) for weight in weights]) for _ in range(2))
    assert one.turn(index) == other.turn(index)
    source, before = one.turn(index)
    assert one.turn(index + sum(one.counts)) == (source, before + one.counts[source])


def test_weights_with_a_point_are_exact_and_odd_ones_are_rounded_to_a_long_period():
    assert Mix.of([0.3, 0.7]).counts == (3, 7)
    assert Mix.of([2.0, 1.0, 1.0]).counts == (2, 1, 1)
    odd = Mix.of([3.14159, 2.71828, 1e-6])
    assert sum(odd.counts) == 10_000
    assert min(odd.counts) == 1
    assert abs(odd.counts[0] - 10_000 * 3.14159 / 5.859871) < 1.5


def test_a_source_without_turns_never_has_one():
    assert {source for source, _ in turns(Mix.counted([3, 0, 2]), 20)} == {0, 2}


def test_an_order_is_a_permutation_that_the_name_decides():
    one = shuffled("train/0/0/0", 500).tolist()
    assert sorted(one) == list(range(500))
    assert shuffled("train/0/0/0", 500).tolist() == one
    assert shuffled("train/0/0/1", 500).tolist() != one
    assert shuffled("train/1/0/0", 500).tolist() != one
