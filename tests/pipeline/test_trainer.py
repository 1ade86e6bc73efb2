import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tether.core.advantage import GRPO, DrGRPO
from tether.core.aggregation import Denominator
from tether.core.rule import PolicyTokens
from tether.core.tokens import TokenBatch
from tether.errors import ConfigError, NonFiniteError, StalenessError
from tether.models.policy import Policy
from tether.pipeline.nonfinite import explain
from tether.pipeline.packing import Step
from tether.pipeline.trainer import Trainer, TrainerOptions
from tether.records import Group

from .making import completion_of, group_of, random_groups, rollout_of
from .small import (
    Bench,
    Trial,
    algorithm_of,
    assert_same_gradient,
    loaded_of,
    naive_logp_with_gradient,
    off_policy,
    same_weights,
    step_of,
)

PRESETS = ("grpo", "gspo", "sat-grpo", "sat-gspo", "dr-grpo")
AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
BUDGETS = (1, 40, 110)
"""One row in each micro-batch, a few, many; the whole step in one is what they are compared with."""


@pytest.fixture(scope="module")
def moe() -> Bench:
    return Bench(loaded_of("moe"))


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


def assert_same_step(whole: Trial, split: Trial) -> None:
    """Loss, gradient, every number of the report, and what each rollout was told."""
    assert_same_gradient(whole.gradient, split.gradient)
    assert whole.report.metrics.keys() == split.report.metrics.keys()
    for name, metric in whole.report.metrics.items():
        other = split.report.metrics[name]
        assert (metric.merge, metric.count) == (other.merge, other.count), name
        assert metric.value == pytest.approx(other.value, rel=1e-3, abs=2e-5), name
    for id in whole.report.logp:
        torch.testing.assert_close(whole.report.logp[id], split.report.logp[id], atol=2e-5, rtol=1e-5)
        assert torch.equal(whole.report.staleness[id], split.report.staleness[id])


def trials(bench: Bench, algorithm, budgets, **options) -> list[Trial]:
    return [bench.trial(bench.trainer(algorithm, **options), step_of(bench.groups, budget)) for budget in budgets]


@pytest.mark.parametrize("name", PRESETS)
def test_a_step_does_not_depend_on_how_it_was_packed(moe, name):
    whole, *others = trials(moe, algorithm_of(name), (10_000, *BUDGETS))
    assert max(float(g.abs().max()) for g in whole.gradient.values()) > 1e-3
    for split in others:
        assert_same_step(whole, split)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("name", ["grpo", "sat-gspo"])
def test_a_step_does_not_depend_on_how_it_was_packed_under_any_aggregation(dense, name, aggregation):
    algorithm = algorithm_of(name, aggregation={"name": aggregation})
    whole, *others = trials(dense, algorithm, (10_000, 1, 70))
    for split in others:
        assert_same_step(whole, split)


def test_the_steps_above_do_cut_and_gate_tokens(dense):
    """Equality over splits says something about rules that really act."""
    plain, sat = trials(dense, algorithm_of("grpo"), [1])[0], trials(dense, algorithm_of("sat-grpo"), [1])[0]
    assert 0 < plain.number("clip/fraction") < 0.5
    assert sat.number("clip/fraction") > plain.number("clip/fraction")
    assert 0.05 < sat.number("sat/gate_fraction") <= 0.1
    assert sat.number("sat/newly_cut_fraction") > 0


def test_the_micro_batch_scope_of_the_paper_does_depend_on_the_packing(dense):
    whole, split = trials(dense, algorithm_of("sat-grpo", measure="micro-batch"), (10_000, 1))
    with pytest.raises(AssertionError):
        assert_same_gradient(whole.gradient, split.gradient)


def test_the_micro_batch_scope_is_the_step_scope_where_the_step_is_one_micro_batch(dense):
    steps = [trials(dense, algorithm_of("sat-grpo", measure=m), [10_000])[0] for m in ("step", "micro-batch")]
    assert_same_gradient(steps[0].gradient, steps[1].gradient, tolerance=0)


def test_weights_after_a_step_do_not_depend_on_how_it_was_packed(dense):
    one, other = trials(dense, algorithm_of("sat-gspo"), (10_000, 40), lr=1e-4)
    moved = {name: w - dense.state[name] for name, w in one.weights.items()}
    assert max(float(m.abs().max()) for m in moved.values()) > 5e-5
    for name, weight in one.weights.items():
        assert float((weight - other.weights[name]).abs().mean()) < 1e-6


def test_the_order_of_groups_does_not_matter(dense):
    forward = dense.trial(dense.trainer(), step_of(dense.groups, 60))
    backward = dense.trial(dense.trainer(), step_of(dense.groups[::-1], 60))
    assert_same_step(forward, backward)


def test_gradient_checkpointing_changes_no_number(moe):
    plain = moe.trial(moe.trainer(algorithm_of("sat-gspo")), step_of(moe.groups, 110))
    saving = moe.trial(moe.trainer(algorithm_of("sat-gspo"), gradient_checkpointing=True), step_of(moe.groups, 110))
    moe.loaded.model.gradient_checkpointing_disable()
    assert_same_gradient(plain.gradient, saving.gradient, tolerance=1e-6)


def test_on_policy_the_gradient_is_that_of_reinforce(dense):
    groups = off_policy(dense.model(), random_groups(1, 4, 4), spread=0.0)
    algorithm = algorithm_of("grpo", aggregation={"name": "token-mean"})
    got = dense.trial(dense.trainer(algorithm), step_of(groups, 60))
    model = dense.model()
    num_tokens = sum(len(r.completion) for g in groups for r in g.rollouts)
    loss = torch.zeros(())
    for g in groups:
        credit = GRPO()(torch.tensor([r.reward for r in g.rollouts], dtype=torch.float64))
        for r, a in zip(g.rollouts, credit.tolist(), strict=True):
            logp = naive_logp_with_gradient(model, r.prompt.token_ids, r.completion.token_ids.tolist())
            loss = loss - a * logp.sum() / num_tokens
    loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert_same_gradient(got.gradient, wanted, tolerance=1e-4)
    assert got.number("mismatch/max") < 2e-3
    assert got.number("clip/fraction") == 0.0


def flat(groups: list[Group]) -> list[Group]:
    """The groups with equal rewards: no credit, so that only penalties are left."""
    return [replace(g, rollouts=tuple(replace(r, reward=1.0) for r in g.rollouts)) for g in groups]


@pytest.mark.parametrize("budget", [1, 10_000])
def test_the_kl_penalty_pulls_towards_the_reference(dense, budget):
    other = loaded_of("tied", seed=1)
    other.model.requires_grad_(False)
    algorithm = algorithm_of("grpo", kl={"name": "k2", "coefficient": 0.5}, aggregation={"name": "token-mean"})
    got = dense.trial(dense.trainer(algorithm, reference=Policy(other)), step_of(flat(dense.groups), budget))
    model = dense.model()
    deltas = [
        naive_logp_with_gradient(model, *ids) - naive_logp_with_gradient(other.model, *ids)
        for g in dense.groups
        for ids in [(r.prompt.token_ids, r.completion.token_ids.tolist()) for r in g.rollouts]
    ]
    penalty = 0.5 * torch.cat(deltas).square().mean()
    (0.5 * penalty).backward()
    assert_same_gradient(got.gradient, {n: p.grad.clone() for n, p in model.named_parameters()}, tolerance=1e-4)
    assert got.number("policy/kl_reference") == pytest.approx(penalty.item(), rel=1e-3)


def test_the_kl_to_itself_is_zero_and_pulls_nowhere(dense):
    algorithm = algorithm_of("grpo", kl={"name": "k3", "coefficient": 0.5})
    trainer = dense.trainer(algorithm, reference=Policy(dense.loaded))
    got = dense.trial(trainer, step_of(flat(dense.groups)))
    assert got.number("policy/kl_reference") == pytest.approx(0.0, abs=1e-9)
    assert all(float(g.abs().max()) < 1e-6 for g in got.gradient.values())


@pytest.mark.parametrize("has_reference", [True, False])
def test_a_reference_and_a_kl_penalty_come_together_or_not_at_all(dense, has_reference):
    algorithm = algorithm_of("grpo", **({} if has_reference else {"kl": {"name": "k3"}}))
    with pytest.raises(ConfigError, match="needs a reference model, and a reference model a KL penalty"):
        dense.trainer(algorithm, reference=Policy(dense.loaded) if has_reference else None)


@pytest.mark.parametrize("budget", [1, 10_000])
def test_the_entropy_bonus_raises_the_entropy(dense, budget):
    algorithm = algorithm_of("grpo", entropy=0.3, aggregation={"name": "token-mean"})
    got = dense.trial(dense.trainer(algorithm), step_of(flat(dense.groups), budget))
    model = dense.model()
    entropies = []
    for g in dense.groups:
        for r in g.rollouts:
            prompt, ids = r.prompt.token_ids, r.completion.token_ids.tolist()
            logits = model(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
            logp = logits[len(prompt) - 1 : -1].log_softmax(-1)
            entropies.append(-(logp.exp() * logp).sum(-1))
    mean = torch.cat(entropies).mean()
    (-0.3 * mean).backward()
    assert_same_gradient(got.gradient, {n: p.grad.clone() for n, p in model.named_parameters()}, tolerance=1e-4)
    assert got.number("policy/entropy") == pytest.approx(mean.item(), rel=1e-4)


@pytest.mark.parametrize("budget", [1, 10_000])
def test_anchor_with_tis_weights_reinforce_by_the_truncated_ratio_to_the_behavior(dense, budget):
    cap = 1.1
    algorithm = algorithm_of(
        "grpo", proximal="anchor", corrections=[{"name": "tis", "cap": cap}], aggregation={"name": "token-mean"}
    )
    got = dense.trial(dense.trainer(algorithm), step_of(dense.groups, budget))
    model = dense.model()
    num_tokens = sum(len(r.completion) for g in dense.groups for r in g.rollouts)
    loss, capped = torch.zeros(()), 0
    for g in dense.groups:
        credit = GRPO()(torch.tensor([r.reward for r in g.rollouts], dtype=torch.float64))
        for r, a in zip(g.rollouts, credit.tolist(), strict=True):
            logp = naive_logp_with_gradient(model, r.prompt.token_ids, r.completion.token_ids.tolist())
            weight = (logp.detach() - torch.from_numpy(r.completion.logp)).exp()
            capped += int((weight > cap).sum())
            loss = loss - a * (weight.clamp(max=cap) * logp).sum() / num_tokens
    loss.backward()
    assert capped > 5
    assert_same_gradient(got.gradient, {n: p.grad.clone() for n, p in model.named_parameters()}, tolerance=1e-4)
    assert got.number("clip/fraction") == 0.0


def test_a_step_without_a_trainable_token_makes_no_update_and_no_version(dense):
    trainer = dense.trainer()
    empty = [step_of(random_groups(1, 3, 1)), Step(micro_batches=(), denominator=Denominator(0, 0), groups=())]
    empty.append(step_of([group_of(0, [rollout_of(f"g0/{m}", [3], completion_of([]), m) for m in range(2)])]))
    for step in empty:
        report = trainer.step(step)
        assert not report.updated
        assert report.metrics == {}
    assert trainer.updates == 0
    assert same_weights(trainer.policy.weights(), dense.state)


@pytest.mark.parametrize("budget", [1, 10_000])
@pytest.mark.parametrize("name", PRESETS)
def test_weights_that_are_not_numbers_stop_the_step_before_the_update(dense, name, budget):
    trainer = dense.trainer(algorithm_of(name))
    with torch.no_grad():
        trainer.policy.loaded.model.get_input_embeddings().weight[7] = float("nan")
    before = {n: w.clone() for n, w in trainer.policy.model.state_dict().items()}
    rollouts = [
        rollout_of(f"g5/{m}", [3, 4], completion_of(ids, version=40), m) for m, ids in enumerate(([8], [5, 7, 9]))
    ]
    trainer.updates = 43
    with pytest.raises(NonFiniteError) as stopped:
        trainer.step(step_of([group_of(5, rollouts)], budget))
    said = str(stopped.value)
    assert "logp of the trainer is nan" in said
    assert "rollout 'g5/" in said
    assert "version 40, update 43" in said
    assert "No update was made" in said
    assert trainer.updates == 43
    for n, w in trainer.policy.model.state_dict().items():
        assert torch.equal(w, before[n]) or w.isnan().any()
        torch.testing.assert_close(w, before[n], equal_nan=True, atol=0, rtol=0)
    assert all(p.grad is None for p in trainer.policy.model.parameters())


def batch_of(tokens: int, **changes) -> TokenBatch:
    zeros, ids = torch.zeros(tokens), torch.zeros(tokens, dtype=torch.int64)
    known = {"logp_behavior": zeros, "logp_proximal": zeros, "advantage": zeros, "sequence": ids, "group": ids}
    return TokenBatch(**{**known, "staleness": ids, "trainable": torch.ones(tokens, dtype=torch.bool), **changes})


@pytest.mark.parametrize(
    "name", ["logp of the trainer", "logp of the reference", "entropy of the trainer", "advantage"]
)
def test_the_first_token_that_is_not_a_number_is_named(name):
    fine = rollout_of("g5/0", [3, 4], completion_of([8, 9]), 1.0)
    spoiled = rollout_of("g5/1", [3, 4], completion_of([5, 7, 9, 6], version=[32, 32, 40, 40]))
    (micro_batch,) = step_of([group_of(5, [fine, spoiled])]).micro_batches
    bad, good = torch.tensor([-1.0, -1.0, -1.0, -1.0, float("nan"), float("-inf")]), torch.zeros(6)
    tokens = batch_of(
        6,
        logp_reference=bad if name == "logp of the reference" else None,
        advantage=bad if name == "advantage" else good,
    )
    policy = PolicyTokens(
        bad if name == "logp of the trainer" else good, bad if name == "entropy of the trainer" else None
    )
    assert explain([micro_batch], [tokens], [policy], 47).startswith(
        f"{name} is nan at token 2 of rollout 'g5/1' (id 9, version 40, update 47); 2 such tokens"
    )


def test_an_advantage_that_is_not_finite_is_named(dense):
    trainer = dense.trainer(algorithm_of("dr-grpo"))
    rollouts = [rollout_of(f"g0/{m}", [3], completion_of([4]), 1e300 * m) for m in range(2)]
    with np.errstate(over="ignore"):
        step = step_of([group_of(0, rollouts)], advantage=DrGRPO())
    with pytest.raises(NonFiniteError, match=r"advantage is -?inf at token 0 of rollout 'g0/"):
        trainer.step(step)
    assert same_weights(trainer.policy.weights(), dense.state)


def test_a_bfloat16_trainer_adds_up_updates_too_small_to_round():
    bench = Bench(loaded_of("tied"))
    trainer = bench.trainer(algorithm_of("grpo"), lr=2e-5, dtype="bfloat16")
    trainer.policy.model.to(torch.bfloat16)
    trainer = Trainer(
        trainer.policy,
        algorithm_of("grpo"),
        TrainerOptions(lr=2e-5, warmup=0, dtype="bfloat16"),
        reference=None,
        temperature=1.0,
        limits=(100, 1000),
    )
    before = {n: w.clone() for n, w in trainer.policy.weights().items()}
    shares = []
    for _ in range(20):
        trainer.step(step_of(bench.groups))
        moved = [(w != before[n]).flatten() for n, w in trainer.policy.weights().items()]
        shares.append(float(torch.cat(moved).float().mean()))
    assert shares[-1] > 5 * shares[0]  # without float32 copies the first update's share is all there ever is
    assert all(w.dtype == torch.bfloat16 for w in trainer.policy.weights().values())


def test_a_gradient_that_overflows_is_explained_and_not_applied(dense):
    trainer = dense.trainer()
    next(trainer.policy.model.parameters()).register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(NonFiniteError, match="the gradient's norm is not finite at update 0"):
        trainer.step(step_of(dense.groups))
    trainer.policy.model.zero_grad()
    next(trainer.policy.model.parameters())._backward_hooks.clear()
    assert same_weights(trainer.policy.weights(), dense.state)


def test_a_step_after_a_failed_one_is_as_if_it_had_not_been(dense):
    trainer = dense.trainer()
    bad = off_policy(dense.model(), random_groups(9, 2, 3))
    with torch.no_grad():
        weight = trainer.policy.loaded.model.get_input_embeddings().weight
        kept = weight.clone()
        weight[:] = float("nan")
    with pytest.raises(NonFiniteError):
        trainer.step(step_of(bad, 1))
    with torch.no_grad():
        weight[:] = kept
    again, first = dense.trial(trainer, step_of(dense.groups)), dense.trial(dense.trainer(), step_of(dense.groups))
    assert_same_gradient(again.gradient, first.gradient, tolerance=0)


def test_staleness_is_updates_less_the_version_of_each_token(dense):
    trainer = dense.trainer(allowed=9)
    trainer.updates = 10
    rollouts = [
        rollout_of("g0/0", [3], completion_of([4, 5, 6], version=[1, 8, 10]), 1.0),
        rollout_of("g0/1", [3], completion_of([4], version=8)),
    ]
    trial = dense.trial(trainer, step_of([group_of(0, rollouts)]))
    assert trial.report.staleness["g0/0"].tolist() == [9, 2, 0]
    assert trial.report.metrics["staleness/histogram"].value == {"0": 1.0, "2": 2.0, "9": 1.0}
    assert trial.number("staleness/max") == 9.0
    assert trial.number("staleness/mean") == pytest.approx(13 / 4)


def test_a_token_staler_than_the_bound_stops_the_run_before_the_update(dense):
    trainer = dense.trainer(allowed=8)
    trainer.updates = 10
    rollouts = [rollout_of(f"g0/{m}", [3], completion_of([4, 5], version=[1 + m, 10])) for m in range(2)]
    with pytest.raises(StalenessError, match=r"staleness 9 .* at update 10, above the bound 8"):
        trainer.step(step_of([group_of(0, rollouts)]))
    assert trainer.updates == 10
    assert same_weights(trainer.policy.weights(), dense.state)


def test_the_rate_rises_linearly_then_stays(dense):
    options = TrainerOptions(lr=2.0, warmup=4)
    assert [options.lr_at(u, 10) for u in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert TrainerOptions(lr=2.0, warmup=0).lr_at(0, 10) == 2.0
    trainer = dense.trainer(lr=1e-5, warmup=4)
    assert [dense.trial(trainer, step_of(dense.groups)).number("policy/lr") for _ in range(5)] == pytest.approx(
        [2.5e-6, 5e-6, 7.5e-6, 1e-5, 1e-5]
    )


@pytest.mark.parametrize(("warmup", "total"), [(0, 10), (4, 20), (30, 20)])
def test_the_rate_falls_along_a_cosine_and_is_never_negative(warmup, total):
    options = TrainerOptions(lr=1.0, warmup=warmup, schedule="cosine")
    rates = [options.lr_at(u, total) for u in range(total)]
    assert all(0 < rate <= 1.0 for rate in rates)
    after = rates[warmup:]
    assert after == sorted(after, reverse=True)
    if warmup < total:
        halfway = warmup + (total - warmup) // 2
        assert rates[halfway] == pytest.approx(0.5)
        assert options.lr_at(total, total) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("lr", 0.0, "lr must be a finite number > 0; got 0.0"),
        ("lr", math.nan, "lr must be a finite number > 0; got nan"),
        ("lr", math.inf, "lr must be a finite number > 0; got inf"),
        ("grad_clip", -1.0, "grad_clip must be a finite number > 0"),
        ("token_budget", 0, "token_budget must be a finite number > 0"),
        ("warmup", -1, "warmup must be >= 0"),
        ("weight_decay", -0.1, "weight_decay must be >= 0"),
        ("weight_decay", math.nan, "weight_decay must be >= 0"),
        ("betas", (0.9, 1.0), r"betas must lie in \[0, 1\); got \[0.9, 1.0\]"),
    ],
)
def test_trainer_settings_that_cannot_work_are_refused(option, value, message):
    with pytest.raises(ConfigError, match=f"trainer.{message}"):
        TrainerOptions(**{option: value})


def test_the_gradient_is_clipped_over_all_parameters_after_its_norm_is_reported(dense):
    free = dense.trial(dense.trainer(), step_of(dense.groups, 60))
    norm = free.number("policy/grad_norm")
    held = dense.trial(dense.trainer(grad_clip=norm / 4), step_of(dense.groups, 60))
    assert held.number("policy/grad_norm") == pytest.approx(norm)
    total = math.sqrt(sum(float(g.double().square().sum()) for g in held.gradient.values()))
    assert total == pytest.approx(norm / 4, rel=1e-4)


@pytest.mark.parametrize("name", ["sat-gspo", "grpo"])
def test_a_bfloat16_trainer_works_in_float32_ratios(name):
    loaded = loaded_of("moe")
    groups = off_policy(loaded.model, random_groups(1, 4, 4))
    loaded.model.to(torch.bfloat16)
    bench = Bench.__new__(Bench)
    bench.loaded, bench.groups = loaded, groups
    bench.state = {n: w.clone() for n, w in loaded.model.state_dict().items()}
    trainer = bench.trainer(algorithm_of(name), lr=1e-2)
    trial = bench.trial(trainer, step_of(groups, 60))
    assert all(logp.dtype == torch.float32 for logp in trial.report.logp.values())
    assert all(w.dtype == torch.bfloat16 for w in trial.weights.values())
    assert not same_weights(trial.weights, bench.state)
    assert 0 < trial.number("mismatch/abs_mean") < 1.0
    assert math.isfinite(trial.number("policy/grad_norm"))


def test_dropout_is_off_in_the_trainer():
    bench = Bench(loaded_of("gpt2"))
    bench.loaded.model.train()
    first, second = (bench.trial(bench.trainer(), step_of(bench.groups)) for _ in range(2))
    assert_same_gradient(first.gradient, second.gradient, tolerance=0)
    assert first.number("mismatch/abs_mean") == pytest.approx(0.064, abs=0.03)


def test_readings_of_several_scopes_are_their_mean_weighted_by_tokens(dense):
    trial = trials(dense, algorithm_of("sat-grpo", measure="micro-batch"), [60])[0]
    singles, sizes = [], []
    for batch in step_of(dense.groups, 60).micro_batches:
        ids = {row.rollout.id for row in batch.rows}
        d = torch.cat([trial.report.logp[row.rollout.id] for row in batch.rows]) - batch.logp_behavior
        rank = math.ceil(0.9 * len(d) - 1e-9)
        singles.append(float(d.abs().sort().values[rank - 1]))
        sizes.append(len(d))
        assert len(ids) == len(batch.rows)
    wanted = sum(q * n for q, n in zip(singles, sizes, strict=True)) / sum(sizes)
    assert trial.number("sat/q") == pytest.approx(wanted, rel=1e-4)
