"""Whether an engine holds what was published, from numbers alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tether.pipeline.agreement import Agreement
from tether.pipeline.scoring import Logps, Scores

TOKENS = 256
NOISE = 0.01
"""Nats that the number format makes."""


def noise(seed: int, size: float = NOISE) -> Logps:
    return (size * np.random.default_rng(seed).standard_normal(TOKENS)).astype(np.float32)


def agreement(engine: Logps, *, moved: float = 1.0, current: Logps | None = None, **changes) -> Agreement:
    """Versions ``moved`` apart, of which this one is all zeros."""
    scores = Scores(
        published=np.zeros(TOKENS, np.float32),
        previous=noise(9, moved),
        current=noise(2) if current is None else current,
        wider=noise(1),
        narrower=None,
        apart=None,
    )
    return Agreement(
        **{
            "engine": engine,
            "scores": scores,
            "dtypes": ("bfloat16", "float32"),
            "tolerance": 3.0,
            "lengths": (8,) * (TOKENS // 8),
            **changes,
        }
    )


def name_of(found: Agreement) -> str | None:
    fault = found.fault()
    return None if fault is None else fault[0]


def test_an_engine_within_the_floor_has_no_fault():
    assert name_of(agreement(noise(5))) is None


def test_the_floor_is_what_the_number_format_makes_of_these_tokens():
    assert agreement(noise(5)).floor == pytest.approx(NOISE * np.sqrt(2 / np.pi), rel=0.2)


def test_an_engine_many_floors_away_does_not_agree():
    assert name_of(agreement(noise(5, 4.5 * NOISE))) == "agreement"


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_an_engine_on_the_way_between_two_versions_is_told_though_tolerance_is_wide(share):
    between = (1 - share) * noise(9, 0.05) + noise(5, 0.005)
    found = agreement(between, moved=0.05, tolerance=100.0)
    assert found.progress == pytest.approx(share, abs=0.1)
    assert name_of(found) == "nearest"


def test_versions_that_are_too_near_to_each_other_are_not_judged():
    found = agreement(noise(9, 0.01) + noise(5, 0.001), moved=0.01)
    assert not found.is_decidable
    assert name_of(found) is None
    assert found.metrics()["probe/is_undecided"].value == 1.0
    assert "probe/progress" not in found.metrics()


def test_a_trainer_that_moved_from_what_it_published_fails_the_ratio():
    assert name_of(agreement(noise(5), current=noise(6, 0.2))) == "ratio"


def test_a_few_tokens_that_rounding_sent_to_another_expert_are_no_fault():
    engine = noise(5)
    engine[[3, 77, 140]] += 3.0
    assert name_of(agreement(engine)) is None
    assert agreement(engine).metrics()["probe/abs_d_mean"].value > 4 * agreement(engine).floor


def test_a_number_that_is_none_is_a_fault():
    engine = noise(5)
    engine[0] = np.nan
    assert name_of(agreement(engine)) == "agreement"


def test_float32_on_both_sides_leaves_no_room_for_bfloat16():
    scores = Scores(published=noise(3), previous=None, current=noise(3), wider=None, narrower=None, apart=None)
    asked = {"scores": scores, "dtypes": ("float32", "float32"), "tolerance": 3.0, "lengths": (TOKENS,)}
    assert name_of(Agreement(engine=noise(3) + noise(4, 1e-6), **asked)) is None
    assert name_of(Agreement(engine=noise(3) + noise(4, 1e-3), **asked)) == "agreement"


def test_a_trainer_in_bfloat16_widens_the_ratio_and_not_the_agreement():
    scores = Scores(
        published=noise(3),
        previous=None,
        current=noise(3) + noise(4),
        wider=None,
        narrower=noise(3) + noise(7),
        apart=None,
    )
    asked = {"scores": scores, "dtypes": ("float32", "bfloat16"), "tolerance": 3.0, "lengths": (TOKENS,)}
    assert name_of(Agreement(engine=noise(3), **asked)) is None
    assert name_of(Agreement(engine=noise(3) + noise(4), **asked)) == "agreement"


@pytest.mark.parametrize("step", [1, -1])
@pytest.mark.parametrize("tolerance", [3.0, 1e6])
def test_numbers_one_position_off_are_recognized_within_completions_however_much_is_tolerated(step, tolerance):
    trainer = noise(3, 1.0)
    lengths = (8,) * (TOKENS // 8)
    engine = np.concatenate([np.roll(piece, step) for piece in np.split(trainer, np.cumsum(lengths)[:-1])])
    scores = Scores(published=trainer, previous=None, current=None, wider=None, narrower=None, apart=None)
    found = Agreement(engine=engine, scores=scores, dtypes=("float32", "float32"), tolerance=tolerance, lengths=lengths)
    assert name_of(found) == "alignment"
    assert name_of(agreement(noise(5, 1.0))) == "agreement"


def test_log_probs_that_are_bfloat16_numbers_are_refused_however_near_they_are():
    coarse = np.round(-np.abs(noise(3, 5.0)) * 8) / 8
    scores = Scores(published=coarse, previous=None, current=None, wider=None, narrower=None, apart=None)
    found = Agreement(engine=coarse, scores=scores, dtypes=("bfloat16", "float32"), tolerance=3.0, lengths=(TOKENS,))
    assert name_of(found) == "precision"


def test_the_floor_in_float32_is_what_other_shapes_of_the_same_sums_do():
    trainer = -np.abs(noise(3, 1.0))
    asked = {"dtypes": ("float32", "float32"), "tolerance": 3.0, "lengths": (TOKENS,)}
    scores = Scores(published=trainer, previous=None, current=None, wider=None, narrower=None, apart=None)
    engine = trainer + noise(4, 1e-4)
    assert name_of(Agreement(engine=engine, scores=scores, **asked)) == "agreement"
    noisy = replace(scores, apart=trainer + noise(5, 1e-4))
    assert Agreement(engine=engine, scores=noisy, **asked).floor == pytest.approx(1e-4 * np.sqrt(2 / np.pi), rel=0.2)
    assert name_of(Agreement(engine=engine, scores=noisy, **asked)) is None


@pytest.mark.parametrize(("share", "size", "fault"), [(0.1, 0.15, "spread"), (0.01, 3.0, None)])
def test_some_tokens_that_are_far_off_are_a_fault_though_the_mean_is_as_it_should_be(share, size, fault):
    """A row that a cache got wrong; yet a few tokens that rounding sent to another expert are none."""
    engine = noise(5)
    engine[: round(share * TOKENS)] += size
    found = agreement(engine)
    assert found.apart <= 3.0 * found.floor
    assert name_of(found) == fault


@pytest.mark.parametrize("size", [0.01, 0.03, 0.05, 0.1])
def test_a_tail_of_ratios_is_allowed_as_far_as_number_formats_make_one(size):
    """Field notes: the mean is 0 and 8 % of the tokens leave 0.9 .. 1.1, merely by another size of chunks."""
    for seed in range(200):
        own, theirs = noise(3 * seed + 100, size), noise(3 * seed + 101, size)
        scores = Scores(published=noise(3), previous=None, current=None, wider=None, narrower=None, apart=None)
        found = Agreement(
            engine=noise(3) + theirs - own,
            scores=replace(scores, wider=noise(3) - own),
            dtypes=("bfloat16", "float32"),
            tolerance=3.0,
            lengths=(TOKENS,),
        )
        assert name_of(found) is None
    told = found.metrics()
    assert (told["probe/tail_fraction"].value, told["probe/tail_floor"].value) == (found.tail, found.tail_floor)


def test_a_sound_engine_is_not_called_faulty_by_its_spread_in_a_thousand_looks():
    for seed in range(1000):
        numbers = np.random.default_rng(seed)

        def side(numbers=numbers):
            """Of one token in fifty, rounding chose another expert."""
            d = NOISE * numbers.standard_normal(TOKENS)
            return np.where(numbers.random(TOKENS) < 0.02, 30 * d, d).astype(np.float32)

        published = np.zeros(TOKENS, np.float32)
        scores = Scores(published=published, previous=None, current=None, wider=side(), narrower=None, apart=None)
        asked = {"scores": scores, "dtypes": ("bfloat16", "float32"), "tolerance": 3.0, "lengths": (TOKENS,)}
        assert name_of(Agreement(engine=side(), **asked)) is None


def test_a_prompt_whose_experts_change_on_one_side_only_is_no_fault_of_the_spread():
    """All answers to it, an eighth of the tokens, are then as far apart as single tokens are on the other side."""
    published, engine, wider = np.zeros(TOKENS, np.float32), noise(7), noise(8)
    engine[: TOKENS // 8] += np.float32(12 * NOISE)
    wider[-4:] = 12 * NOISE
    scores = Scores(published=published, previous=None, current=None, wider=wider, narrower=None, apart=None)
    found = Agreement(engine=engine, scores=scores, dtypes=("bfloat16", "float32"), tolerance=3.0, lengths=(TOKENS,))
    assert found.spread > 3.0 * np.quantile(np.abs(wider), 0.98) > found.spread / 3
    assert name_of(found) is None


def test_rounding_of_what_was_published_is_not_taken_for_weights_that_did_not_come():
    found: dict[bool, list[str | None]] = {True: [], False: []}
    for seed in range(400):
        draw = np.random.default_rng(seed)
        earlier, *errors = (0.5 * NOISE * draw.standard_t(2, (5, 64)) * [[2], [1], [1], [1], [1]]).astype(np.float32)
        scores = Scores(
            published=errors[0],
            previous=earlier + errors[1],
            wider=np.zeros(64, np.float32),
            current=None,
            narrower=None,
            apart=None,
        )
        for is_stale, names in found.items():
            engine = is_stale * earlier + errors[2]
            looked = agreement(engine.astype(np.float32), scores=scores, tolerance=100.0, lengths=(64,))
            if looked.is_decidable:
                names.append(name_of(looked))
    assert len(found[False]) > 300
    assert set(found[False]) == {None}
    assert found[True].count("nearest") > 0.9 * len(found[True])
