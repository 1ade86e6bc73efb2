"""Truncated sampling of the embedded engine: what it draws among, what it tells of it, and that it tells the truth."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.engines.tiny import (
    CUTS,
    VOCABULARY,
    assert_equal_bits,
    build,
    engine_of,
    plain_forward,
    requests,
    sample,
    through_a_file,
    truncated,
)
from tether.core.truncation import Limits, kept_of
from tether.engines import sampling
from tether.engines.decoding import RowBatch
from tether.engines.kept import as_bits, listed
from tether.engines.sampling import uniforms
from tether.errors import DataError
from tether.ports import GenerationRequest
from tether.records import Completion, KeptSets, Truncation


@pytest.fixture(scope="module")
def moe() -> Any:
    return build("moe")


@given(rows=st.integers(1, 4), width=st.integers(1, 40), seed=st.integers(0, 1000))
def test_bits_come_back_as_the_ids_they_were_made_of(rows: int, width: int, seed: int) -> None:
    mask = torch.rand(rows, width, generator=torch.Generator().manual_seed(seed)) < 0.4
    ids, sizes = listed(as_bits(mask).numpy())
    assert ids.tolist() == mask.nonzero()[:, 1].tolist()
    assert sizes.tolist() == mask.sum(-1).tolist()


def plain_kept(model: Any, request: GenerationRequest, completion: Completion) -> tuple[torch.Tensor, torch.Tensor]:
    """Masks, and log-probs over them, from one forward pass without a cache."""
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids.tolist()]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(request.prompt_ids) - 1 : -1]
    logp = torch.log_softmax(logits.float() / request.temperature, -1)
    mask = kept_of(logp, Limits.of([request.truncation] * len(logp), logp.device)).mask
    over = logp.masked_fill(~mask, -torch.inf).log_softmax(-1)
    return mask, over.gather(-1, torch.from_numpy(completion.token_ids).long()[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_tokens_come_from_what_is_kept_with_its_log_probs_and_the_entropy_of_all(moe: Any, temperature: float) -> None:
    asked = truncated(requests(12, temperature=temperature))
    cut_away = 0.0
    for request, made in zip(asked, sample(engine_of(moe, dtype="float32"), asked), strict=True):
        mask, logp = plain_kept(moe, request, made)
        np.testing.assert_allclose(made.logp, logp, atol=2e-5)
        np.testing.assert_allclose(made.entropy, plain_forward(moe, request, made)[1], atol=2e-5)
        assert (made.kept is None) == (request.truncation.is_none or not request.kept)
        if made.kept is not None:
            assert [made.kept.of(t).tolist() for t in range(len(made))] == [
                row.nonzero()[:, 0].tolist() for row in mask
            ]
            assert all(made.token_ids[t] in made.kept.of(t) for t in range(len(made)))
            cut_away += float((~mask).sum())
    assert cut_away > 100


def test_what_is_kept_does_not_depend_on_the_batch_nor_on_blocks(moe: Any) -> None:
    asked = [replace(r, kept=True) for r in truncated(requests(10))]
    together = sample(engine_of(moe, dtype="float32"), asked)
    for options in ({"max_rows": 3, "yield_every": 1}, {"yield_every": 5}):
        other = sample(engine_of(moe, dtype="float32", **options), asked)
        assert [sets(one) for one in other] == [sets(one) for one in together]
    assert [sets(one) for one in sample(engine_of(moe, dtype="float32"), asked[::-1])] == [
        sets(one) for one in together[::-1]
    ]


def sets(completion: Completion) -> Any:
    kept = completion.kept
    return completion.token_ids.tolist(), None if kept is None else (kept.ids.tolist(), kept.starts.tolist())


def test_a_row_without_truncation_is_drawn_to_the_same_bits_beside_truncated_ones() -> None:
    torch.manual_seed(0)
    logits, temperature = torch.randn(4, 700) * 3, torch.ones(4)
    uniform = torch.rand(4, dtype=torch.float64)
    plain = sampling.sample(logits, temperature, uniform, may_be_greedy=False)
    limits = Limits.of([CUTS[i % 2] for i in range(4)], logits.device, reports=True)
    mixed = sampling.sample(logits, temperature, uniform, may_be_greedy=False, limits=limits)
    for one, other in zip(plain[:3], mixed[:3], strict=True):
        assert torch.equal(one[::2], other[::2])
    assert (mixed.logp[1::2] != plain.logp[1::2]).all()
    assert torch.equal(plain.entropy, mixed.entropy)


@pytest.mark.parametrize("vocabulary", [9, 600])
def test_frequencies_are_those_of_the_kept_ids_renormalized(vocabulary: int) -> None:
    torch.manual_seed(1)
    logits, count = torch.randn(1, vocabulary), 60_000
    cut = Truncation(top_p=0.7)
    uniform = torch.from_numpy(uniforms(np.array([11], np.uint64), 0, count)[0])
    limits = Limits.of([cut] * count, logits.device)
    ids = sampling.sample(logits.expand(count, -1), torch.ones(count), uniform, limits=limits).ids
    mask = kept_of(logits.log_softmax(-1), Limits.of([cut], logits.device)).mask[0]
    expected = logits[0].double().masked_fill(~mask, -torch.inf).softmax(-1)[mask] * count
    observed = torch.bincount(ids, minlength=vocabulary).double()
    assert observed[~mask].sum() == 0
    statistic = ((observed[mask] - expected) ** 2 / expected).sum()
    freedom = int(mask.sum()) - 1
    assert statistic < freedom + 4 * (2 * freedom) ** 0.5


def test_a_distribution_cut_down_to_one_id_has_log_prob_zero(moe: Any) -> None:
    asked = [replace(r, truncation=Truncation(top_k=1), kept=True) for r in requests(4)]
    for made in sample(engine_of(moe, dtype="float32"), asked):
        assert (made.logp == 0).all()
        assert made.kept is not None
        assert made.kept.ids.tolist() == made.token_ids.tolist()
        assert made.entropy is not None
        assert (made.entropy > 0).all()


def test_a_greedy_row_takes_an_id_that_is_kept(moe: Any) -> None:
    asked = [replace(r, temperature=0.0, truncation=Truncation(top_p=0.5), kept=True) for r in requests(4)]
    plain = sample(engine_of(moe, dtype="float32"), [replace(r, temperature=0.0) for r in requests(4)])
    for made, free in zip(sample(engine_of(moe, dtype="float32"), asked), plain, strict=True):
        assert made.token_ids.tolist() == free.token_ids.tolist()
        assert made.kept is not None
        assert all(made.token_ids[t] in made.kept.of(t) for t in range(len(made)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_row_that_is_not_a_number_marks_its_own_logp_only(bad: float) -> None:
    logits = torch.tensor([[0.0, bad, 1.0], [0.0, 1.0, 1.0]])
    limits = Limits.of([Truncation(top_p=0.9)] * 2, logits.device, reports=True)
    drawn = sampling.sample(logits, torch.ones(2), torch.full((2,), 0.5, dtype=torch.float64), limits=limits)
    assert torch.isnan(drawn.logp).tolist() == [True, False]


def test_rows_that_join_and_a_batch_that_is_restored_keep_their_sets(moe: Any) -> None:
    """Truncated rows join a batch that had none, so that a part of the first block has nothing to tell."""
    loaded = engine_of(moe)._loaded
    plain, some = requests(4)[:2], [replace(r, kept=True) for r in truncated(requests(4))[1:]]
    ended: list[dict[str, Completion]] = []
    for is_saved in (False, True):
        batch = RowBatch.of(loaded, plain)
        batch.advance(0, 3)
        batch.join(some)
        batch.advance(1, 3)
        if is_saved:
            state = through_a_file(batch.state())
            batch = RowBatch(loaded)
            batch.restore(state)
        drafts = batch.drafts
        while batch.drafts:
            batch.advance(2, 3)
        ended.append({draft.request.id: draft.completion() for draft in drafts})
    assert_equal_bits(list(ended[1].values()), list(ended[0].values()))
    assert len(ended[0].keys() & {r.id for r in some}) >= 2
    for request in some:
        if request.id in ended[0]:
            assert sets(ended[0][request.id]) == sets(sample(engine_of(moe, dtype="float32"), [request])[0])


def begun_with(request: GenerationRequest, whole: Completion, count: int, kept: KeptSets | None) -> GenerationRequest:
    names = ("token_ids", "logp", "entropy", "version")
    parts = {name: getattr(whole, name)[:count] for name in names}
    return replace(request, so_far=Completion(**parts, finish="interrupted", kept=kept))


def first(kept: KeptSets, count: int) -> KeptSets:
    return KeptSets(ids=kept.ids[: kept.starts[count]], starts=kept.starts[: count + 1])


def test_a_completion_goes_on_with_the_sets_it_began_with_or_does_not_know_them(moe: Any) -> None:
    request = replace(requests(1)[0], truncation=Truncation(top_p=0.8), kept=True, max_tokens=9)
    engine = engine_of(moe, dtype="float32", eos_ids=(VOCABULARY,))
    (whole,) = sample(engine, [request])
    assert whole.kept is not None
    for count in range(9):
        known = begun_with(request, whole, count, first(whole.kept, count))
        unknown = begun_with(request, whole, count, None)
        one, other = sample(engine, [known, unknown])
        assert sets(one) == sets(whole)
        assert other.kept is not None
        assert [len(other.kept.of(t)) for t in range(count)] == [0] * count
        assert [other.kept.of(t).tolist() for t in range(count, 9)] == [
            whole.kept.of(t).tolist() for t in range(count, 9)
        ]


def test_sets_of_another_vocabulary_are_refused(moe: Any) -> None:
    request = replace(requests(1)[0], truncation=Truncation(top_p=0.8), kept=True, max_tokens=9)
    engine = engine_of(moe, dtype="float32", eos_ids=(VOCABULARY,))
    (whole,) = sample(engine, [request])
    strange = KeptSets(ids=np.array([3, 99], np.int32), starts=np.array([0, 1, 2], np.int64))
    with pytest.raises(DataError, match=r"kept ids must lie in 0 .. 23; request 'r0' goes on from 3 .. 99"):
        asyncio.run(engine.generate(begun_with(request, whole, 2, strange)))


@pytest.mark.parametrize(
    ("ids", "starts"), [([1, 2], [0, 1]), ([1, 2], [1, 2]), ([1, 2], [0, 2, 1, 2]), ([], []), ([1], [0, 2])]
)
def test_sets_that_do_not_add_up_are_refused(ids: Sequence[int], starts: Sequence[int]) -> None:
    with pytest.raises(ValueError, match="starts of KeptSets must rise from 0"):
        KeptSets(ids=np.array(ids, np.int32), starts=np.array(starts, np.int64))


def test_starts_of_a_completions_sets_rise_with_its_tokens(moe: Any) -> None:
    (made,) = sample(engine_of(moe), [replace(requests(1)[0], truncation=Truncation(top_p=0.8), kept=True)])
    assert made.kept is not None
    assert (made.kept.ids.dtype, made.kept.starts.dtype) == (np.int32, np.int64)
    assert all(end > start for start, end in pairwise(made.kept.starts))
