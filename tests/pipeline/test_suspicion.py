"""Faults that can be read off log-probs alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tether.pipeline.suspicion import is_coarse, shift_of


@given(st.integers(0, 2**32), st.integers(4, 40), st.floats(0.0, 0.3))
def test_numbers_that_stand_where_they_belong_are_not_called_shifted(seed, length, noise):
    numbers = np.random.default_rng(seed)
    trainer = -numbers.exponential(1.0, 4 * length).astype(np.float32)
    engine = trainer + (noise * numbers.standard_normal(4 * length)).astype(np.float32)
    assert shift_of(engine, trainer, [length] * 4) == 0


@given(st.integers(0, 2**32), st.integers(8, 40), st.sampled_from([-1, 1]))
def test_numbers_one_place_off_in_every_completion_are(seed, length, step):
    numbers = np.random.default_rng(seed)
    trainer = -numbers.exponential(1.0, (4, length)).astype(np.float32)
    engine = np.roll(trainer, step, axis=1) + numbers.normal(0, 0.02, (4, length)).astype(np.float32)
    assert shift_of(engine.ravel(), trainer.ravel(), [length] * 4) == step


def test_the_shift_of_the_field_notes_is_seen():
    """Rollout ``[-0.1, -3.0]`` against a trainer that is off by one and reads ``[-3.0, -0.5]``, many times."""
    rollout, trainer = (np.tile(values, 9).astype(np.float32) for values in ([-0.1, -3.0, -0.5], [-3.0, -0.5, -0.1]))
    assert shift_of(rollout, trainer, [27]) == 1


@pytest.mark.parametrize(
    "values", [np.zeros(64), -np.ones(64), np.full(64, np.nan), -np.arange(3.0), np.arange(64) * -(2.0**-23)]
)
def test_numbers_that_tell_nothing_are_not_suspected(values):
    logp = values.astype(np.float32)
    assert shift_of(logp, logp, [len(logp)]) == 0
    assert not is_coarse(logp)  # the last are what a subtraction in float32 leaves of probabilities near 1


@given(st.integers(0, 2**32))
def test_float32_numbers_are_not_called_coarse_and_bfloat16_numbers_are(seed):
    logp = -np.random.default_rng(seed).exponential(1.0, 32).astype(np.float32)
    coarse = (logp.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert not is_coarse(logp)
    assert is_coarse(coarse)
    assert is_coarse(np.concatenate([coarse, np.zeros(99, np.float32)]))
