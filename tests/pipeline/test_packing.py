import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.core.advantage import GRPO, DrGRPO
from tether.core.aggregation import Denominator
from tether.errors import DataError, NonFiniteError
from tether.models.policy import Policy
from tether.pipeline.packing import Bundle, Row, check_finite, credited, pack, split

from .making import completion_of, group_of, random_groups, rollout_of
from .small import loaded_of, naive_logp, off_policy, step_of

BUDGETS = (1, 7, 20, 33, 64, 10_000)


def bundles_of(lengths: list[int]) -> list[Bundle]:
    rollouts = [rollout_of(f"g0/{i}", [1], completion_of([2] * (n - 1))) for i, n in enumerate(sorted(lengths))]
    return [Bundle(rows=(Row(rollout=rollout, group=0, advantage=0.0),)) for rollout in rollouts]


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 120))
@settings(max_examples=200)
def test_micro_batches_keep_the_budget_and_only_a_response_that_exceeds_it_goes_alone(lengths, budget):
    bundles = bundles_of(lengths)
    chunks = split(bundles, budget)
    assert list(itertools.chain(*chunks)) == bundles
    for chunk in chunks:
        padded = len(chunk) * max(bundle.num_tokens for bundle in chunk)
        assert padded <= budget or len(chunk) == 1


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 120))
@settings(max_examples=100)
def test_a_micro_batch_is_closed_only_when_the_next_response_does_not_fit(lengths, budget):
    chunks = split(bundles_of(lengths), budget)
    for chunk, following in itertools.pairwise(chunks):
        assert (len(chunk) + 1) * following[0].num_tokens > budget


@pytest.mark.parametrize("budget", BUDGETS)
def test_a_response_is_never_split(budget):
    groups = random_groups(2, 5, 3)
    step = step_of(groups, budget)
    packed = {}
    for batch in step.micro_batches:
        for number, row in enumerate(batch.rows):
            assert row.rollout.id not in packed
            packed[row.rollout.id] = batch.inputs.ids[batch.sequence == number].tolist()
    assert packed == {r.id: r.completion.token_ids.tolist() for g in groups for r in g.rollouts}


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("advantage", [GRPO(), DrGRPO()], ids=["grpo", "dr-grpo"])
def test_every_token_meets_the_advantage_the_group_and_the_version_of_its_own_response(budget, advantage):
    groups = random_groups(4, 5, 4)
    for g in groups:
        for m, rollout in enumerate(g.rollouts):
            rollout.completion.version[:] = 10 * g.index + m + np.arange(len(rollout.completion))
    credit = {
        r.id: float(a)
        for g in groups
        for r, a in zip(
            g.rollouts, advantage(torch.tensor([r.reward for r in g.rollouts], dtype=torch.float64)), strict=True
        )
    }
    seen = 0
    for batch in step_of(groups, budget, advantage).micro_batches:
        for number, row in enumerate(batch.rows):
            mine = batch.sequence == number
            completion = row.rollout.completion
            assert batch.advantage[mine].tolist() == pytest.approx([credit[row.rollout.id]] * len(completion))
            assert set(batch.group[mine].tolist()) == {int(row.rollout.id[1:].split("/")[0])}
            assert batch.version[mine].tolist() == completion.version.tolist()
            assert torch.equal(batch.logp_behavior[mine], torch.from_numpy(completion.logp))
            assert torch.equal(batch.entropy_behavior[mine], torch.from_numpy(completion.entropy))
            seen += 1
    assert seen == 20


@pytest.mark.parametrize("budget", BUDGETS)
def test_denominators_count_the_whole_step_whatever_the_budget(budget):
    groups = random_groups(5, 4, 3)
    tokens = sum(len(r.completion) for g in groups for r in g.rollouts)
    assert step_of(groups, budget).denominator == Denominator(num_tokens=tokens, num_sequences=12)


def test_an_empty_response_is_no_sequence_of_the_denominator():
    group = group_of(0, [rollout_of("g0/0", [3, 4], completion_of([])), rollout_of("g0/1", [3, 4], completion_of([5]))])
    step = step_of([group])
    assert step.denominator == Denominator(num_tokens=1, num_sequences=1)
    assert [len(batch.rows) for batch in step.micro_batches] == [2]


def test_a_group_without_a_baseline_is_left_out_of_rows_and_counts_but_stays_in_the_step():
    alone, pair = random_groups(1, 2, 1)[0], random_groups(2, 2, 2)[1]
    step = step_of([alone, pair])
    assert {row.group for row in step.rows} == {1}
    assert step.denominator.num_sequences == 2
    assert step.groups == (alone, pair)


def test_a_step_of_nothing_has_no_micro_batch():
    step = step_of(random_groups(1, 3, 1))
    assert step.micro_batches == ()
    assert step.denominator == Denominator(num_tokens=0, num_sequences=0)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("kind", ["moe", "tied"])
def test_a_token_is_predicted_one_position_before_its_own(budget, kind):
    loaded = loaded_of(kind)
    groups = random_groups(6, 3, 3)
    policy = Policy(loaded)
    for batch in step_of(groups, budget).micro_batches:
        with torch.no_grad():
            got = policy(batch.inputs, temperature=1.3).logp
        wanted = [
            naive_logp(loaded.model, row.rollout.prompt.token_ids, row.rollout.completion.token_ids.tolist(), 1.3)
            for row in batch.rows
        ]
        torch.testing.assert_close(got, torch.cat(wanted), atol=2e-5, rtol=1e-5)


def test_the_shifted_position_would_be_noticed():
    """Equality above means something: the numbers of neighbouring tokens are far away."""
    loaded = loaded_of()
    batch = step_of(off_policy(loaded.model, random_groups(6, 3, 3), spread=0.0)).micro_batches[0]
    policy = Policy(loaded)
    with torch.no_grad():
        right = policy(batch.inputs, temperature=1.0).logp
        column = batch.inputs.column + 1
        shifted = policy(dataclasses.replace(batch.inputs, column=column), temperature=1.0).logp
    assert (right - batch.logp_behavior).abs().max() < 2e-3
    assert (shifted - batch.logp_behavior).abs().mean() > 0.3


def test_padding_that_looks_like_the_end_is_never_trained():
    """The padding id may be the end-of-sequence id: places tell them apart, not values."""
    rollouts = [rollout_of("g0/0", [3], completion_of([5, 1])), rollout_of("g0/1", [3], completion_of([5, 6, 7, 8, 1]))]
    step = pack([group_of(0, rollouts)], GRPO(), token_budget=100, pad_id=1, device="cpu")
    (batch,) = step.micro_batches
    assert batch.inputs.input_ids.tolist() == [[3, 5, 1, 1, 1, 1], [3, 5, 6, 7, 8, 1]]
    assert batch.inputs.ids.tolist() == [5, 1, 5, 6, 7, 8, 1]
    assert bool(batch.trainable.all())


@pytest.mark.parametrize("name", ["logp", "entropy"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_is_refused_by_rollout_token_id_and_version(name, value):
    rollout = rollout_of("g7/2", [3], completion_of([11, 12, 13], version=[40, 40, 48]))
    getattr(rollout.completion, name)[2] = value
    with pytest.raises(NonFiniteError) as refused:
        step_of([group_of(7, [rollout, rollout_of("g7/3", [3], completion_of([4]))])])
    said = str(refused.value)
    assert f"{name} of the engine is {value}" in said
    assert "token 2 of rollout 'g7/2' (id 13, version 48)" in said


def test_a_log_probability_above_zero_is_refused():
    rollout = rollout_of("g7/2", [3], completion_of([11, 12], logp=[-0.5, 0.25]))
    with pytest.raises(DataError, match=r"above 0 in rollout 'g7/2' \(largest 0.25\)"):
        check_finite(rollout)


def test_rounding_of_a_certain_token_is_no_error():
    check_finite(rollout_of("g0/0", [3], completion_of([11], logp=[5e-5])))


def test_groups_of_equal_rewards_get_exactly_no_credit():
    rollouts = [rollout_of(f"g0/{m}", [3], completion_of([4]), 0.9) for m in range(5)]
    assert [row.advantage for row in credited([group_of(0, rollouts)], GRPO())] == [0.0] * 5


@pytest.mark.parametrize("dtype", [np.float16, np.int64, object])
def test_log_probs_of_an_engine_that_are_not_float32_are_refused(dtype):
    """Whatever came over a wire: half floats, whole numbers, or a list with ``None`` in it."""
    rollout = rollout_of("g0/0", [3], completion_of([11], logp=[-1.0]))
    object.__setattr__(rollout.completion, "logp", np.array([-1.0]).astype(dtype))  # tests check types, runs do not
    with pytest.raises(DataError, match=rf"must be float32.*rollout 'g0/0' are {np.dtype(dtype)}"):
        check_finite(rollout)
