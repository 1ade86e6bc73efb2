"""Completions behind one copy of their prompt: another layout of the same step, with the same loss and gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tether.core.advantage import GRPO
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.models.sharing import PromptSharing
from tether.pipeline.packing import Row, Step, bundled, pack

from .making import completion_of, group_of, random_groups, rollout_of
from .small import Bench, algorithm_of, assert_same_gradient, loaded_of, off_policy

EAGER = PromptSharing(token_cost=1e6)
"""Shares whatever it costs."""
SOME = PromptSharing(token_cost=6.0)
"""Two or three completions a row."""


def shared(groups: Any, sharing: PromptSharing | None = EAGER, *, budget: int = 4096, pad_id: int = 0) -> Step:
    return pack(groups, GRPO(), token_budget=budget, pad_id=pad_id, device="cpu", sharing=sharing)


def of_kind(kind: str) -> LoadedModel:
    if kind == "embedded":
        return load_model("tiny-moe")
    if kind != "llama":
        return loaded_of(kind)
    import transformers as hf

    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=24,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    model = hf.LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return replace(loaded_of(), model=model.eval())


def bench_of(kind: str) -> Bench:
    """A bench none of whose ratios lies on the clip's edge, where rounding decides about the gradient."""
    bench = Bench(of_kind(kind))
    bench.groups = off_policy(bench.model(), random_groups(2, 4, 4))
    return bench


def logps(policy: Policy, step: Step) -> dict[str, torch.Tensor]:
    found = {}
    for batch in step.micro_batches:
        with torch.no_grad():
            logp = policy(batch.inputs, temperature=1.0).logp
        pieces = logp.split([len(row.rollout.completion) for row in batch.rows])
        found.update({row.rollout.id: piece for row, piece in zip(batch.rows, pieces, strict=True)})
    return found


@pytest.mark.parametrize("kind", ["embedded", "moe", "tied", "eager", "gpt2", "llama"])
@pytest.mark.parametrize(("sharing", "budget"), [(EAGER, 4096), (SOME, 4096), (EAGER, 40), (EAGER, 7)])
def test_loss_and_gradient_are_those_of_rows_apart(kind, sharing, budget):
    bench = bench_of(kind)
    apart = bench.trial(bench.trainer(), shared(bench.groups, None))
    together = bench.trial(bench.trainer(), shared(bench.groups, sharing, budget=budget))
    assert together.number("policy/loss") == pytest.approx(apart.number("policy/loss"), rel=1e-4, abs=1e-6)
    assert together.number("policy/entropy") == pytest.approx(apart.number("policy/entropy"), rel=1e-4)
    assert_same_gradient(apart.gradient, together.gradient, 5e-5)


def test_whole_step_statistics_are_those_of_rows_apart():
    bench = bench_of("moe")
    algorithm = algorithm_of("sat-gspo")
    apart = bench.trial(bench.trainer(algorithm), shared(bench.groups, None))
    together = bench.trial(bench.trainer(algorithm), shared(bench.groups, budget=60))
    assert_same_gradient(apart.gradient, together.gradient, 5e-5)


@pytest.mark.parametrize("kind", ["moe", "tied", "llama"])
def test_in_bfloat16_the_gradient_is_as_near_to_float32s_as_that_of_rows_apart(kind):
    bench = bench_of(kind)
    exact = bench.trial(bench.trainer(), shared(bench.groups, None)).gradient
    bench.loaded.model.to(torch.bfloat16)
    distances = []
    for sharing in (None, EAGER):
        gradient = bench.trial(bench.trainer(), shared(bench.groups, sharing)).gradient
        distances.append(sum(float((gradient[name].float() - exact[name]).square().sum()) for name in exact) ** 0.5)
    assert distances[1] <= 1.5 * distances[0]


def test_layers_computed_again_in_backward_give_the_same_gradient():
    bench = bench_of("tied")
    plain = bench.trial(bench.trainer(), shared(bench.groups))
    again = bench.trial(bench.trainer(gradient_checkpointing=True), shared(bench.groups))
    assert_same_gradient(plain.gradient, again.gradient)


def test_the_reference_of_a_kl_penalty_reads_the_same_rows():
    algorithm = algorithm_of("grpo", kl={"name": "k3", "coefficient": 0.1})
    bench = bench_of("tied")
    trials = [
        bench.trial(
            bench.trainer(algorithm, reference=Policy(loaded_of("tied", seed=5))), shared(bench.groups, sharing)
        )
        for sharing in (None, EAGER)
    ]
    assert trials[0].number("policy/kl_reference") > 1e-3
    assert_same_gradient(trials[0].gradient, trials[1].gradient, 5e-5)


def test_a_trainer_shares_only_if_its_reference_can():
    algorithm = algorithm_of("grpo", kl={"name": "k3", "coefficient": 0.1})
    bench = bench_of("tied")
    assert bench.trainer().sharing is not None
    assert bench.trainer(algorithm, reference=Policy(loaded_of("sliding"))).sharing is None


def test_a_completion_never_sees_another():
    policy = Policy(loaded_of("tied"))
    rollouts = [rollout_of(f"g0/{i}", [3, 4, 5], completion_of([6 + i, 7, 8]), i) for i in range(3)]
    before = logps(policy, shared([group_of(0, rollouts)]))
    rollouts[0] = rollout_of("g0/0", [3, 4, 5], completion_of([20, 21, 22]), 0)
    after = logps(policy, shared([group_of(0, rollouts)]))
    assert not torch.allclose(before["g0/0"], after["g0/0"])
    for name in ("g0/1", "g0/2"):
        torch.testing.assert_close(before[name], after[name])


def test_what_fills_the_rows_never_matters():
    policy = Policy(loaded_of())
    groups = random_groups(3, 4, 3)
    one, other = (logps(policy, shared(groups, pad_id=pad)) for pad in (0, 17))
    for name in one:
        torch.testing.assert_close(one[name], other[name])


def test_every_first_token_is_predicted_from_the_prompts_last_position():
    rollouts = [rollout_of(f"g0/{i}", [3, 4, 5], completion_of([6 + i] * (3 - i)), i) for i in range(3)]
    (batch,) = shared([group_of(0, rollouts)]).micro_batches
    assert batch.inputs.input_ids.tolist() == [[3, 4, 5, 6, 6, 6, 7, 7, 8]]
    assert batch.inputs.position.tolist() == [[0, 1, 2, 3, 4, 5, 3, 4, 3]]
    assert batch.inputs.branch.tolist() == [[0, 0, 0, 1, 1, 1, 2, 2, 3]]
    assert batch.inputs.column.tolist() == [2, 3, 4, 2, 6, 2]
    assert batch.inputs.ids.tolist() == [6, 6, 6, 7, 7, 8]
    assert batch.sequence.tolist() == [0, 0, 0, 1, 1, 2]


def test_rows_apart_need_no_mask():
    (batch,) = shared(random_groups(1, 3, 3), None).micro_batches
    assert batch.inputs.position is None
    assert batch.inputs.branch is None


def test_an_empty_completion_shares_a_row_too():
    rollouts = [rollout_of("g0/0", [3, 4], completion_of([])), rollout_of("g0/1", [3, 4], completion_of([5, 6]), 1)]
    step = shared([group_of(0, rollouts)])
    assert [len(piece) for piece in logps(Policy(loaded_of()), step).values()] == [2, 0]


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 30),
    st.integers(1, 200),
    st.floats(0.0, 1e5),
)
@settings(max_examples=200)
def test_bundles_hold_every_response_once_and_exceed_the_budget_only_alone(lengths, prompt, budget, cost):
    rows = [
        Row(rollout=rollout_of(f"g0/{i}", [1] * prompt, completion_of([2] * n)), group=0, advantage=0.0)
        for i, n in enumerate(lengths)
    ]
    sharing = PromptSharing(token_cost=cost)
    bundles = bundled(rows, sharing, budget)
    assert sorted(row.rollout.id for b in bundles for row in b.rows) == sorted(row.rollout.id for row in rows)
    for b in bundles:
        assert b.num_tokens == prompt + sum(len(row.rollout.completion) for row in b.rows)
        assert b.num_tokens <= budget or len(b.rows) == 1


def test_rows_of_other_groups_are_never_bundled_even_behind_the_same_prompt():
    groups = [group_of(g, [rollout_of(f"g{g}/{i}", [3], completion_of([5]), i) for i in range(2)]) for g in range(2)]
    rows = [{row.group for row in b.rows} for b in bundled(shared(groups).rows, EAGER, 100)]
    assert rows == [{0}, {1}]
