"""What vLLM samples and reports, against the trainer's own model."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch

from tether.errors import ConfigError, DataError
from tether.records import Truncation

from .world import CUTS, Versions, clock, gathered, logits_of, opened, requests, run


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_log_probs_are_the_trainers_in_float32(moe, temperature):
    versions, asked = Versions(), requests(8, temperature=temperature)
    for request, made in zip(asked, gathered(moe, versions, asked, 1), strict=True):
        np.testing.assert_allclose(made.logp, versions.plain(1, request, made), atol=1e-4)


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_truncated_log_probs_are_those_over_the_kept_set(endless, cut):
    versions, asked = Versions(), requests(8, temperature=0.8, truncation=cut, kept=True)
    for request, made in zip(asked, gathered(endless, versions, asked), strict=True):
        assert made.kept is not None
        assert all(made.token_ids[t] in made.kept.of(t) for t in range(len(made)))
        np.testing.assert_allclose(made.logp, versions.plain(0, request, made), atol=1e-4)


def test_kept_sets_are_what_the_truncation_says(endless):
    versions, asked = Versions(), requests(4, truncation=Truncation(top_k=3), kept=True)
    for request, made in zip(asked, gathered(endless, versions, asked), strict=True):
        assert made.kept is not None
        best = logits_of(versions.models[0], request, made).topk(3).indices.numpy()
        assert [set(made.kept.of(t).tolist()) for t in range(len(made))] == [set(row.tolist()) for row in best]


def test_kept_sets_are_told_where_asked_only(moe):
    versions = Versions()
    plain, cut, told = (
        *requests(1),
        replace(requests(2)[1], truncation=Truncation(top_k=2)),
        replace(requests(3)[2], truncation=Truncation(top_k=2), kept=True),
    )
    made = gathered(moe, versions, [plain, cut, told])
    assert [one.kept is None for one in made] == [True, True, False]
    assert all(one.entropy is None for one in made)


def test_alternatives_are_the_most_probable_ids_in_order(moe):
    versions, asked = Versions(), requests(3, alternatives=4)
    for request, made in zip(asked, gathered(moe, versions, asked), strict=True):
        expected = torch.log_softmax(logits_of(versions.models[0], request, made), -1).topk(4)
        assert made.top_k_ids is not None
        assert made.top_k_ids.tolist() == expected.indices.tolist()
        np.testing.assert_allclose(made.top_k_logp, expected.values.numpy(), atol=1e-4)


def test_each_row_has_as_many_alternatives_as_it_asks_for(moe):
    one, two, none = requests(3)
    made = gathered(moe, Versions(), [replace(one, alternatives=1), replace(two, alternatives=5), none])
    assert [None if m.top_k_ids is None else m.top_k_ids.shape[1] for m in made] == [1, 5, None]


def test_a_completion_that_stops_ends_in_an_end_id_and_has_it_nowhere_else(moe):
    versions, asked = Versions(), requests(16)
    made = gathered(moe, versions, asked)
    ends = set(moe.skeleton.eos_ids)
    assert {one.finish for one in made} == {"stop", "length"}
    for one in made:
        assert not ends & set(one.token_ids[:-1].tolist())
        assert (int(one.token_ids[-1]) in ends) == (one.finish == "stop")
        assert one.finish == "stop" or len(one) == 12


def test_a_sample_depends_on_its_seed_and_not_on_its_company(moe):
    versions, asked = Versions(), requests(6)
    together = gathered(moe, versions, asked)
    for request, made in zip(asked[:3], together, strict=False):
        (alone,) = gathered(moe, versions, [request])
        assert alone.token_ids.tolist() == made.token_ids.tolist()
    other = gathered(moe, versions, [replace(r, seed=r.seed + 1000) for r in asked])
    assert [m.token_ids.tolist() for m in other] != [m.token_ids.tolist() for m in together]


def test_greedy_takes_the_most_probable_id_and_reports_temperature_1(moe):
    versions, asked = Versions(), requests(4, temperature=0.0)
    for request, made in zip(asked, gathered(moe, versions, asked, 2), strict=True):
        logits = logits_of(versions.models[2], request, made)
        assert made.token_ids.tolist() == logits.argmax(-1).tolist()
        np.testing.assert_allclose(made.logp, versions.plain(2, request, made), atol=1e-4)


def test_rows_wait_where_there_are_more_than_fit(moe):
    versions, asked = Versions(), requests(7)
    few = gathered(moe, versions, asked, max_rows=2)
    assert [m.token_ids.tolist() for m in few] == [m.token_ids.tolist() for m in gathered(moe, versions, asked)]


def test_a_completion_goes_on_from_what_it_was_and_repeats_no_numbers(endless):
    versions = Versions()
    (request,) = requests(1, max_tokens=10, temperature=2.0, truncation=Truncation(top_k=20), kept=True, alternatives=2)
    (whole,) = gathered(endless, versions, [request])
    begun = replace(gathered(endless, versions, [replace(request, max_tokens=4)])[0], finish="interrupted")
    (made,) = gathered(endless, versions, [replace(request, so_far=begun)], 1)
    assert made.token_ids[:4].tolist() == begun.token_ids.tolist() == whole.token_ids[:4].tolist()
    assert made.version.tolist() == [0] * 4 + [8] * 6
    assert made.cached_version is None
    assert made.kept is not None
    assert len(made.kept) == len(made) == 10
    assert made.top_k_ids is not None
    assert made.top_k_ids.shape == (10, 2)
    np.testing.assert_array_equal(made.logp[:4], begun.logp)
    np.testing.assert_allclose(made.logp[4:], versions.plain(1, request, made)[4:], atol=1e-4)
    (again,) = gathered(endless, versions, [replace(request, so_far=begun, seed=request.seed)], 1)
    assert again.token_ids.tolist() == made.token_ids.tolist()
    assert made.token_ids[4:8].tolist() != made.token_ids[:4].tolist()


def test_random_numbers_of_the_process_are_left_as_they_were(moe):
    before = torch.get_rng_state()
    gathered(moe, Versions(), requests(3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt_ids": ()}, "at least one token"),
        ({"prompt_ids": (5, 99)}, "prompt ids must lie in"),
        ({"temperature": 2.5}, "vLLM samples at temperature 0"),
        ({"temperature": 0.005}, "vLLM samples at temperature 0"),
        ({"max_tokens": 10**6}, "fit the context"),
    ],
)
def test_what_cannot_be_served_is_refused_before_any_work(moe, fields, message):
    async def main() -> None:
        engine = moe.engine(Versions().store, clock())
        with pytest.raises(DataError, match=message):
            await engine.generate(replace(requests(1)[0], **fields))

    run(main())


def test_answers_are_apart_and_what_is_under_way_ends_as_it_would_have(endless):
    versions, asked = Versions(), requests(3, max_tokens=9)

    async def main(looks: bool):
        time = clock()
        engine = endless.engine(versions.store, time)
        await engine.load(versions.publications[0])
        running = asyncio.gather(*map(engine.generate, asked))
        await time.until(0.07)
        before = time.now()
        answers = await engine.answer(requests(20, temperature=0.0)) if looks else []
        assert time.now() == before
        return answers, await running

    answers, seen = run(main(True))
    _, unseen = run(main(False))
    assert len(answers) == 20
    assert [m.token_ids.tolist() for m in seen] == [m.token_ids.tolist() for m in unseen]
    assert all(made.version.tolist() == [0] * 9 for made in seen)
    for request, made in zip(asked, seen, strict=True):
        np.testing.assert_allclose(made.logp, versions.plain(0, request, made), atol=1e-4)
    for request, made in zip(requests(20, temperature=0.0), answers, strict=True):
        assert len(made) == 12
        np.testing.assert_allclose(made.logp, versions.plain(0, request, made), atol=1e-4)


def test_a_cache_that_holds_nothing_is_told_with_the_keys_of_a_recipe():
    with pytest.raises(ConfigError, match=r"engine\.kv_cache_gib = 1e-09, .*it says: No available"):
        opened("tiny-dense", "float32", kv_cache_gib=1e-9)
