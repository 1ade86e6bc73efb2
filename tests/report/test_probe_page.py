"""The page of a probe: one file, offline, whatever the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.errors import RunDirectoryError
from tether.report.probe import ProbePage, Way, check_probe_folder, drawn_tokens, render, survival, write_probe

from .conftest import NASTY
from .test_report import parse


def way(d, **others) -> Way:
    abs_d = np.array(d, np.float32)
    return Way(label="without replay", abs_d=abs_d, logp_behavior=-abs_d - 1, **others)


def page_of(*ways: Way, title: str = "a model") -> ProbePage:
    return ProbePage(
        title=title,
        subtitle="of a kind",
        table=[("", "without replay"), ("max |d|", "0.5")],
        notes=["d is a difference"],
        thresholds=[("masks 1%", "--set 'a=1'")],
        ways=ways,
    )


@pytest.mark.parametrize("d", [[0.5], [0.0, 0.0], [1e-9, 0.5], list(np.geomspace(1e-8, 2, 5000))])
def test_a_page_is_one_file_that_loads_nothing_whatever_the_distances(tmp_path, d):
    html, numbers = write_probe(tmp_path, page_of(way(d), way(d, rerouted=np.array(d) > 0.4)), {"max": 0.5})
    found = parse(html)
    assert found.fetched == []
    assert html.stat().st_size < 3_000_000
    for text in ("a model", "of a kind", "max |d|", "0.5", "d is a difference", "--set 'a=1'"):
        assert text in found.text
    assert "default-src 'none'" in html.read_text()
    assert numbers.read_text() == '{\n "max": 0.5\n}'


def test_the_page_has_the_look_of_a_report_light_and_dark():
    text = render(page_of(way([0.1])))
    assert "prefers-color-scheme: dark" in text
    assert "--card" in text


def test_what_comes_from_outside_is_escaped():
    assert NASTY not in render(page_of(way([0.1]), title=NASTY))


@given(st.lists(st.floats(0, 10, width=32), min_size=1, max_size=50))
def test_the_survival_function_counts_what_is_at_least_as_large(values):
    d = np.array(values, np.float32)
    x, share = survival(d)
    assert (np.diff(x) > 0).all()
    assert share.tolist() == pytest.approx([(d >= v).mean() for v in x])


def test_of_many_tokens_the_farthest_apart_are_drawn_and_some_of_all_others():
    d = np.random.default_rng(0).permutation(np.arange(10_000, dtype=np.float32))
    drawn = d[drawn_tokens(d, most=200)]
    assert len(drawn) <= 200
    assert set(range(9900, 10_000)) <= set(drawn.tolist())
    assert drawn.min() < 200


def test_a_folder_is_made_and_one_with_other_things_is_refused(tmp_path):
    check_probe_folder(tmp_path / "a" / "b")
    (tmp_path / "a" / "b" / "probe.json").write_text("{}")
    check_probe_folder(tmp_path / "a" / "b")
    with pytest.raises(RunDirectoryError, match="holds 'b': choose another folder"):
        check_probe_folder(tmp_path / "a")
