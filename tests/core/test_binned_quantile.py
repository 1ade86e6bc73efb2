"""One quantile a bin: the plain one's of the bin's own tokens, to the last bit."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.core.binned_quantile import BinnedQuantile
from tether.core.examples import tokens_of
from tether.core.statistics import AbsoluteQuantile, measure

from .heavy import log_ratios, tokens_at

numbers = st.one_of(st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 0.25, -0.25]), st.floats(-20, 20, width=32))


def staled(d, staleness, trainable=None):
    tokens, logp = tokens_of(log_ratio=d, advantage=[1.0] * len(d))
    changes = {"staleness": torch.tensor(staleness, dtype=torch.int64), "turn": torch.tensor(staleness).long()}
    if trainable is not None:
        changes["trainable"] = torch.tensor(trainable)
    return logp.detach(), dataclasses.replace(tokens, **changes)


@given(
    drawn=st.lists(st.tuples(numbers, st.integers(0, 40), st.booleans()), min_size=1, max_size=60),
    level=st.sampled_from([0.25, 0.5, 0.9, 1.0]),
    edges=st.sets(st.integers(1, 35), max_size=6).map(lambda s: tuple(sorted(s))),
    by=st.sampled_from(["turn", "staleness"]),
)
@settings(max_examples=80, deadline=None)
def test_every_bin_has_the_bits_of_the_plain_quantile_of_its_tokens(drawn, level, edges, by):
    d, tokens = staled(*zip(*drawn, strict=True))
    one = BinnedQuantile(level, by, edges)
    got = measure([(d, tokens)], [one])[one]
    for value, start, end in zip(got, (0, *edges), (*edges, 1000), strict=True):
        here = dataclasses.replace(
            tokens, trainable=tokens.trainable & (tokens.staleness >= start) & (tokens.staleness < end)
        )
        plain = measure([(d, here)], [AbsoluteQuantile(level)])[AbsoluteQuantile(level)]
        assert value.view(torch.int32) == plain.view(torch.int32)


@pytest.mark.parametrize("shape", ["student", "mixture"])
def test_one_bin_is_the_plain_quantile(shape):
    tokens, d = tokens_at(log_ratios(shape, 5000, scale=0.1, seed=0), seed=0)
    one, plain = BinnedQuantile(0.9, "staleness", ()), AbsoluteQuantile(0.9)
    stats = measure([(d.detach(), tokens)], [one, plain])
    assert stats[one].equal(stats[plain].view(1))
    assert one.labels == ("0+",)


def test_a_bin_without_trainable_tokens_is_zero():
    one = BinnedQuantile(0.9, "staleness", (1, 4))
    d, tokens = staled([0.5, 0.25, 3.0], [0, 9, 2], [True, True, False])
    assert measure([(d, tokens)], [one])[one].tolist() == [0.5, 0.0, 0.25]


@pytest.mark.parametrize(
    ("edges", "labels"),
    [
        ((1, 2, 4, 8, 16), ("0", "1", "2-3", "4-7", "8-15", "16+")),
        ((1, 2, 3), ("0", "1", "2", "3+")),
        ((5,), ("0-4", "5+")),
    ],
)
def test_bins_are_named_by_their_range(edges, labels):
    one = BinnedQuantile(0.9, "turn", edges)
    assert one.labels == labels
    starts = torch.tensor([0, *edges])
    _, tokens = staled([0.0] * len(starts), starts.tolist())
    assert one.bins(tokens).tolist() == list(range(len(labels)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quantile": 0.0}, r"quantile must lie in \(0, 1\]; got 0.0"),
        ({"edges": (2, 1)}, r"edges of bins must be whole numbers from 1 that ascend; got \(2, 1\)"),
        ({"edges": (1, 1)}, "edges of bins must be whole numbers from 1 that ascend"),
        ({"edges": (0, 1)}, "edges of bins must be whole numbers from 1 that ascend"),
        ({"edges": tuple(range(1, 65))}, "edges of bins must be at most 63; got 64"),
    ],
)
def test_what_makes_no_bins_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BinnedQuantile(**{"quantile": 0.9, "by": "turn", "edges": (1,), **options})
