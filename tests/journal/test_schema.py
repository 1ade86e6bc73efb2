import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import DataError, NonFiniteError
from tether.journal import Sample
from tether.journal.schema import event_from_json, event_to_json, sample_from_json, sample_to_json, to_line
from tether.records import Event, Grade, Metric

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VALUES = FINITE | st.dictionaries(st.text(max_size=4), FINITE, max_size=4)
METRICS = st.dictionaries(
    st.text(min_size=1, max_size=8),
    st.builds(Metric, VALUES, st.sampled_from(["mean", "sum", "max", "min", "last"]), st.floats(0, 1e9)),
    max_size=4,
)


def sample(**changes) -> Sample:
    fields = {
        "id": "r0",
        "step": 3,
        "prompt": "1+1=",
        "completion": "2",
        "token_texts": ("2", "<eos>"),
        "token_ids": np.array([7, 1], np.int32),
        "logp_behavior": np.array([-0.1, -1e-7], np.float32),
        "logp": np.array([-0.3, 0.0], np.float32),
        "version": np.array([0, 8], np.int32),
        "staleness": np.array([12, 4], np.int32),
        "trainable": np.array([True, False]),
        "reward": 1.0,
        "advantage": -0.5,
    }
    return Sample(**(fields | changes))


@given(st.integers(0, 10**6), st.integers(0, 10**6), METRICS, st.text(max_size=20))
def test_an_event_comes_back_as_it_was(step, version, metrics, note):
    event = Event(event="step", step=step, version=version, metrics=metrics, note=note)
    line = to_line(event_to_json(event))
    assert line.count(b"\n") == 1
    assert event_from_json(json.loads(line)) == event


def test_the_order_of_arrival_leaves_no_trace():
    one = {"b": Metric({"10": 1.0, "9": 2.0}, "sum"), "a": Metric(1.0)}
    two = {"a": Metric(1.0), "b": Metric({"9": 2.0, "10": 1.0}, "sum")}
    lines = [to_line(event_to_json(Event(event="step", step=1, version=1, metrics=metrics))) for metrics in (one, two)]
    assert lines[0] == lines[1]
    assert lines[0] == (
        b'{"schema":1,"event":"step","step":1,"version":1,"metrics":'
        b'{"a":1.0,"b":{"value":{"9":2.0,"10":1.0},"merge":"sum","count":1.0}}}\n'
    )


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"8": float("nan")}])
def test_no_nan_enters_the_journal(value):
    with pytest.raises(NonFiniteError, match="metric 'mismatch/k3'"):
        event_to_json(Event(event="step", step=1, version=1, metrics={"mismatch/k3": Metric(value)}))


def test_a_count_must_be_a_finite_number_of_at_least_zero():
    with pytest.raises(NonFiniteError, match="count of metric 'a'"):
        event_to_json(Event(event="step", step=1, version=1, metrics={"a": Metric(1.0, count=float("inf"))}))
    with pytest.raises(DataError, match=r"count of metric 'a' must be 0 or more; got -1.0"):
        event_to_json(Event(event="step", step=1, version=1, metrics={"a": Metric(1.0, count=-1.0)}))


def test_a_sample_comes_back_as_it_was_in_the_shortest_digits():
    line = to_line(sample_to_json(sample()))
    assert b'"logp_behavior":[-0.1,-1e-07]' in line
    again = sample_from_json(json.loads(line))
    for name in Sample.__slots__:
        np.testing.assert_array_equal(getattr(again, name), getattr(sample(), name))
        assert getattr(getattr(again, name), "dtype", None) == getattr(getattr(sample(), name), "dtype", None)


GRADES = {
    "math": Grade(value=1.0, status="correct", extracted="12", stage="boxed:number"),
    "found": Grade(value=0.0, status="no_answer", extracted=""),
    "size": Grade(value=-0.25),
}


def test_what_each_part_of_the_reward_gave_is_kept_and_old_lines_still_load():
    line = json.loads(to_line(sample_to_json(sample(grades=GRADES, is_right=True))))
    again = sample_from_json(line)
    assert dict(again.grades) == GRADES
    assert again.is_right is True
    assert line["grades"]["size"] == {"value": -0.25}
    assert line["grades"]["found"] == {"value": 0.0, "status": "no_answer", "extracted": ""}
    old = sample_to_json(sample())
    assert not {"grades", "is_right"} & set(old)
    assert (sample_from_json(old).grades, sample_from_json(old).is_right) == ({}, None)


def test_a_grade_that_is_no_number_names_part_and_sample():
    with pytest.raises(NonFiniteError, match="grade size of sample 'r0' is nan"):
        sample_to_json(sample(grades={"size": Grade(value=float("nan"))}))


def test_of_how_many_ids_a_token_was_drawn_is_kept_where_it_is_known():
    line = json.loads(to_line(sample_to_json(sample(num_kept=np.array([3, 1], np.int32)))))
    assert sample_from_json(line).num_kept.tolist() == line["num_kept"] == [3, 1]
    assert "num_kept" not in sample_to_json(sample())


def test_a_sample_that_was_never_evaluated_has_no_mismatch():
    again = sample_from_json(json.loads(to_line(sample_to_json(sample(logp=None)))))
    assert again.mismatch is None
    np.testing.assert_allclose(sample().mismatch, [-0.2, 1e-7], rtol=1e-5)


def test_arrays_of_a_sample_have_one_length():
    with pytest.raises(DataError, match="arrays of sample 'r0' must have one length"):
        sample(token_texts=("2",))


def test_a_log_prob_that_is_no_number_names_sample_and_token():
    with pytest.raises(NonFiniteError, match="logp_behavior of sample 'r0' is -inf at token 1"):
        sample_to_json(sample(logp_behavior=np.array([0.0, -np.inf], np.float32)))


def test_any_text_is_one_line_of_json():
    line = to_line({"text": "a\nb\u2028c \udcff é"})
    assert line.count(b"\n") == 1
    assert json.loads(line)["text"] == "a\nb\u2028c \udcff é"
