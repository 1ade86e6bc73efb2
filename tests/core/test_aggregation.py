"""Shares of the loss: what they add up to, and which counts they use."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tether.core.aggregation import (
    Denominator,
    SeqMeanTokenMean,
    SeqMeanTokenSum,
    SeqMeanTokenSumNorm,
    TokenMean,
    TokenSum,
)
from tether.core.examples import tokens_of

LENGTHS = (3, 1, 4)
STEP = Denominator(num_tokens=8, num_sequences=3)


@pytest.fixture
def tokens():
    ids = [b for b, n in enumerate(LENGTHS) for _ in range(n)]
    return tokens_of(log_ratio=[0.0] * 8, advantage=[1.0] * 8, sequence=ids)[0]


def total(shares: torch.Tensor, tokens) -> list[float]:
    """Sum of shares of every response."""
    return [float(shares[tokens.sequence == b].sum()) for b in range(len(LENGTHS))]


@pytest.mark.parametrize(
    ("aggregation", "wanted"),
    [
        (TokenMean(), [3 / 8, 1 / 8, 4 / 8]),
        (TokenSum(), [3.0, 1.0, 4.0]),
        (SeqMeanTokenSum(), [1.0, 1 / 3, 4 / 3]),
        (SeqMeanTokenMean(), [1 / 3, 1 / 3, 1 / 3]),
        (SeqMeanTokenSumNorm(horizon=6), [3 / 18, 1 / 18, 4 / 18]),
    ],
    ids=lambda x: type(x).__name__ if dataclasses.is_dataclass(x) else "",
)
def test_share_of_every_response(tokens, aggregation, wanted):
    assert total(aggregation(tokens, STEP), tokens) == pytest.approx(wanted)


def test_a_response_counts_its_trainable_tokens_only(tokens):
    part = dataclasses.replace(tokens, trainable=torch.tensor([True, True, False, True, True, True, True, True]))
    shares = SeqMeanTokenMean()(part, Denominator(7, 3))
    assert shares[:2].tolist() == pytest.approx([1 / 6, 1 / 6])


@pytest.mark.parametrize("aggregation", [TokenMean(), SeqMeanTokenMean(), SeqMeanTokenSum()])
def test_counts_are_the_steps_not_the_micro_batches(tokens, aggregation):
    half = tokens.select(tokens.sequence == 0)
    alone, within = aggregation(half, Denominator(3, 1)), aggregation(half, STEP)
    assert (within < alone).all()


@pytest.mark.parametrize("aggregation", [TokenMean(), TokenSum(), SeqMeanTokenSum(), SeqMeanTokenMean()])
def test_an_empty_step_divides_by_nothing(tokens, aggregation):
    nobody = dataclasses.replace(tokens, trainable=torch.zeros(8, dtype=torch.bool))
    assert aggregation(nobody, Denominator(0, 0)).isfinite().all()


def test_a_horizon_that_was_left_out_is_refused_in_words(tokens):
    with pytest.raises(ValueError, match="horizon of seq-mean-token-sum-norm must be a length >= 1; got 0"):
        SeqMeanTokenSumNorm()(tokens, STEP)
