import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import DataError
from tether.journal import merge
from tether.records import Metric, Metrics

NUMBERS = st.floats(-1e6, 1e6)
COUNTS = st.floats(0.0, 1e4)
LABELS = st.dictionaries(st.sampled_from(["0", "1", "8", "15"]), NUMBERS, max_size=4)
HOWS = {"a/mean": "mean", "b/sum": "sum", "c/max": "max", "d/min": "min"}


@st.composite
def parts(draw: st.DrawFn) -> list[Metrics]:
    one = st.fixed_dictionaries(
        {},
        optional={name: st.builds(Metric, NUMBERS, st.just(how), COUNTS) for name, how in HOWS.items()}
        | {f"{name}/by": st.builds(Metric, LABELS, st.just(how), COUNTS) for name, how in HOWS.items()},
    )
    return draw(st.lists(one, min_size=1, max_size=6))


def assert_same(left: Metrics, right: Metrics) -> None:
    assert left.keys() == right.keys()
    for name, metric in left.items():
        other = right[name]
        assert other.merge == metric.merge
        assert math.isclose(other.count, metric.count, rel_tol=1e-9)
        one = metric.value if isinstance(metric.value, dict) else {"": metric.value}
        two = other.value if isinstance(other.value, dict) else {"": other.value}
        assert one.keys() == two.keys()
        for label in one:
            assert math.isclose(one[label], two[label], rel_tol=1e-9, abs_tol=1e-6), (name, label)


@given(parts(), st.randoms(use_true_random=False))
def test_order_does_not_matter(metrics, random):
    shuffled = list(metrics)
    random.shuffle(shuffled)
    assert_same(merge(metrics), merge(shuffled))


@given(parts(), st.integers(0, 6))
def test_split_does_not_matter(metrics, at):
    assert_same(merge(metrics), merge([merge(metrics[:at]), merge(metrics[at:])]))


@given(st.lists(st.builds(Metric, NUMBERS, st.just("last"), COUNTS), min_size=1, max_size=6), st.integers(0, 6))
def test_last_keeps_the_order_in_any_split(metrics, at):
    each = [{"policy/lr": metric} for metric in metrics]
    merged = merge([merge(each[:at]), merge(each[at:])])["policy/lr"]
    assert merged.value == metrics[-1].value


def test_mean_weighs_by_count_and_nothing_stands_behind_a_count_of_zero():
    assert merge([{"m": Metric(1.0, count=3.0)}, {"m": Metric(5.0, count=1.0)}])["m"] == Metric(2.0, "mean", 4.0)
    assert merge([{"m": Metric(7.0, count=0.0)}, {"m": Metric(5.0, count=1.0)}])["m"].value == 5.0
    assert merge([{"m": Metric(7.0, count=0.0)}])["m"] == Metric(0.0, "mean", 0.0)


def test_a_label_missing_from_a_mean_is_a_zero_there():
    merged = merge([{"s": Metric({"0": 1.0}, count=1.0)}, {"s": Metric({"1": 1.0}, count=3.0)}])["s"]
    assert merged == Metric({"0": 0.25, "1": 0.75}, "mean", 4.0)


def test_the_last_histogram_replaces_the_ones_before():
    merged = merge([{"s": Metric({"0": 1.0}, "last")}, {"s": Metric({"1": 1.0}, "last")}])["s"]
    assert merged.value == {"1": 1.0}


def test_two_merges_under_one_name_are_refused():
    with pytest.raises(DataError, match="metric 'm' has one merge; got max, mean"):
        merge([{"m": Metric(1.0)}, {"m": Metric(1.0, "max")}])


def test_a_number_and_a_histogram_under_one_name_are_refused():
    with pytest.raises(DataError, match="number here and a histogram there"):
        merge([{"m": Metric(1.0)}, {"m": Metric({"0": 1.0})}])


def test_nothing_merges_to_nothing():
    assert merge([]) == {}
