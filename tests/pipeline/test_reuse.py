"""Several updates from one batch: the anchor stays where the batch was taken, everything else moves on."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from tether.core.advantage import GRPO
from tether.core.loss import measure_scope, policy_loss
from tether.errors import StalenessError
from tether.journal.merging import merge
from tether.pipeline.update_metrics import reuse_metrics

from .small import (
    Bench,
    algorithm_of,
    assert_same_gradient,
    loaded_of,
    off_policy,
    random_groups,
    same_weights,
    step_of,
)

ANCHORED = {"proximal": {"name": "anchor"}, "corrections": [{"name": "tis", "cap": 1.1}]}
LR = 3e-3


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


def weights_of(trainer) -> dict[str, torch.Tensor]:
    return copy.deepcopy(dict(trainer.policy.model.state_dict()))


def by_hand(bench: Bench, algorithm, num_updates: int, **options):
    """Weights after updates that are written out: one micro-batch, the anchor from the first forward."""
    trainer = bench.trainer(algorithm, lr=LR, **options)
    model, step = trainer.policy.model, step_of(bench.groups)
    (micro_batch,) = step.micro_batches
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=(0.9, 0.98), weight_decay=0.0)
    anchor, ratios = None, []
    for number in range(num_updates):
        policy = trainer.policy(micro_batch.inputs, temperature=1.0)
        anchor = policy.logp.detach() if anchor is None else anchor
        tokens = replace(trainer._tokens(micro_batch), logp_anchor=anchor, staleness=number - micro_batch.version)
        tokens = replace(tokens, logp_proximal=algorithm.proximal(tokens, policy.logp.detach()))
        stats = measure_scope(algorithm, [(policy.logp, tokens)])
        term = policy_loss(policy, tokens, algorithm, stats, step.denominator)
        term.loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ratios.append((policy.logp.detach() - anchor).exp())
    return weights_of(trainer), ratios


@pytest.mark.parametrize(
    ("name", "changes"),
    [("grpo", ANCHORED), ("sat-grpo", {}), ("sat-grpo", ANCHORED)],
    ids=["ppo", "sat", "sat-anchor"],
)
def test_two_updates_of_a_batch_are_two_updates_made_by_hand_with_the_anchor_of_the_first(dense, name, changes):
    algorithm = algorithm_of(name, **changes)
    wanted, ratios = by_hand(dense, algorithm, 2)
    assert torch.equal(ratios[0], torch.ones_like(ratios[0]))
    assert float((ratios[1] - 1).abs().max()) > 0.01
    trainer = dense.trainer(algorithm, lr=LR)
    report = trainer.step(step_of(dense.groups), 2)
    assert trainer.updates == 2
    for key, weight in weights_of(trainer).items():
        torch.testing.assert_close(weight, wanted[key], rtol=0, atol=0, msg=key)
    moved = ratios[1].log().abs()
    assert report.metrics["reuse/moved_max"].value == pytest.approx(float(moved.max()), abs=1e-6)
    assert report.metrics["reuse/moved_abs_mean"].value == pytest.approx(float(moved.double().mean()), abs=1e-6)


def test_against_the_anchor_nothing_is_clipped_at_first_and_something_later(dense):
    report = dense.trainer(algorithm_of("grpo", **ANCHORED), lr=1e-2).step(step_of(dense.groups), 3)
    shares = report.metrics["reuse/clip_fraction_by_update"].value
    assert list(shares) == ["0", "1", "2"]
    assert shares["0"] == 0.0
    assert 0 < shares["1"] < 1


def test_updates_do_not_depend_on_how_the_batch_was_packed(dense):
    """From the second update on the anchor that each micro-batch kept is what the gradient stands against."""
    gradients = []
    for budget in (4096, 40):
        trainer, caught = dense.trainer(algorithm_of("sat-grpo", **ANCHORED), lr=1e-3), []
        named = dict(trainer.policy.model.named_parameters())
        trainer._optimizer.register_step_pre_hook(
            lambda *_, named=named, caught=caught: caught.append({n: p.grad.clone() for n, p in named.items()})
        )
        trainer.step(step_of(dense.groups, budget), 2)
        gradients.append(caught)
    whole, split = gradients
    assert len(whole) == len(split) == 2
    assert_same_gradient(whole[0], split[0])
    assert_same_gradient(whole[1], split[1], tolerance=2e-2)  # Adam's first step is a sign: weights differ a little


def test_one_update_says_what_it_did_and_nothing_of_reuse(dense):
    one = dense.trial(dense.trainer(algorithm_of("sat-gspo")), step_of(dense.groups, 40))
    trainer = dense.trainer(algorithm_of("sat-gspo"))
    report = trainer.step(step_of(dense.groups, 40), 1)
    assert report.metrics == one.report.metrics
    assert same_weights(weights_of(trainer), one.weights)
    assert not [name for name in report.metrics if name.startswith("reuse/")]


def test_a_batch_of_two_updates_tells_both_as_their_metrics_merge(dense):
    """Against the behavior policy the anchor plays no part: two batches of one update on the same data do the same."""
    algorithm = algorithm_of("sat-grpo")
    apart, together = dense.trainer(algorithm, lr=LR), None
    reports = [apart.step(step_of(dense.groups, 60)) for _ in range(2)]
    weights = weights_of(apart)
    together = dense.trainer(algorithm, lr=LR)
    report = together.step(step_of(dense.groups, 60), 2)
    assert same_weights(weights_of(together), weights)
    wanted = merge([one.metrics for one in reports])
    assert {name: m for name, m in report.metrics.items() if not name.startswith("reuse/")} == wanted
    assert report.metrics["staleness/max"].value == 1.0
    assert report.metrics["sat/q"].value == pytest.approx(sum(r.metrics["sat/q"].value for r in reports) / 2)
    for id, logp in reports[0].logp.items():
        assert torch.equal(report.logp[id], logp)
        assert torch.equal(report.staleness[id], reports[0].staleness[id])


def test_staleness_grows_with_every_update_and_is_held_to_the_bound_at_each(dense):
    trainer = dense.trainer(allowed=4)
    trainer.updates = 3
    report = trainer.step(step_of(dense.groups), 2)
    n = float(sum(len(r.completion) for g in dense.groups for r in g.rollouts))
    assert report.metrics["staleness/histogram"].value == {"3": n, "4": n}
    assert {int(s) for x in report.staleness.values() for s in x} == {3}
    trainer = dense.trainer(allowed=4)
    trainer.updates = 4
    with pytest.raises(StalenessError, match=r"staleness 5 .* at update 5, above the bound 4"):
        trainer.step(step_of(dense.groups), 2)
    assert trainer.updates == 5  # the first of them was sound


def test_an_interpolated_proximal_keeps_the_staleness_at_which_the_batch_was_taken(dense):
    trainer = dense.trainer(algorithm_of("a3po"), lr=LR)
    trainer.updates = 2
    step = step_of(dense.groups)
    (micro_batch,) = step.micro_batches
    made = trainer._once(step, [trainer._tokens(micro_batch)])
    again = trainer._once(step, trainer._moved_on(step, [made.measured[0][1]]), 1)
    for logp, tokens in (*made.measured, *again.measured):
        half = torch.lerp(tokens.logp_behavior, logp, 0.5)
        torch.testing.assert_close(tokens.logp_proximal, half)
    assert [int(m.measured[0][1].staleness[0]) for m in (made, again)] == [2, 3]


def test_the_average_the_rate_and_the_memory_follow_every_update(dense):
    options = {"lr": LR, "warmup": 4}
    for name in ("ppo-ewma", "sat-ema", "vcpo"):
        apart = dense.trainer(algorithm_of(name), **options)
        rates = [apart.step(step_of(dense.groups)).metrics["policy/lr"].value for _ in range(2)]
        state = copy.deepcopy(apart.state())
        together = dense.trainer(algorithm_of(name), **options)
        report = together.step(step_of(dense.groups), 2)
        assert report.metrics["policy/lr"].value == pytest.approx(sum(rates) / 2)
        for key, tensor in state["parameters"].items():
            assert torch.equal(together.state()["parameters"][key], tensor), name
        assert str(together.state()["memory"]) == str(state["memory"])


def test_what_reuse_did_is_read_from_trainable_tokens_alone(dense):
    groups = off_policy(dense.model(), random_groups(1, 1, 2))
    (micro_batch,) = step_of(groups, advantage=GRPO()).micro_batches
    trainer = dense.trainer()
    tokens = trainer._tokens(micro_batch)
    size = len(tokens)
    trainable = torch.arange(size) > 0
    anchor = torch.cat([torch.tensor([float("nan")]), torch.zeros(size - 1)])
    tokens = replace(tokens, trainable=trainable, logp_anchor=anchor)
    metrics = reuse_metrics([0.0, 0.5], [(torch.full((size,), -0.25), tokens)])
    assert metrics["reuse/moved_abs_mean"].value == 0.25
    assert metrics["reuse/moved_max"].value == 0.25
    assert metrics["reuse/moved_abs_mean"].count == size - 1
