"""R2: later updates of a batch take the experts that the trainer chose in its first."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tether.config.build import _sampling
from tether.config.recipe import load
from tether.core.algorithm import Algorithm
from tether.errors import ConfigError, ModelError
from tether.models.routers import find_routers
from tether.pipeline.routing import own_routes
from tether.pipeline.trainer import Trainer

from .making import group_of
from .small import Bench, algorithm_of, assert_same_gradient, loaded_of, same_weights, step_of

R2: list[dict[str, Any]] = [{"name": "routing", "source": "trainer"}]
LR = 1e-2
"""Far enough that tokens change their experts."""


@pytest.fixture(scope="module")
def moe() -> Bench:
    return Bench(loaded_of("moe"))


def repeating(name: str = "sat-gspo") -> Algorithm:
    return algorithm_of(name, replay=R2)


def passes_of(trainer: Trainer) -> list[list[Any]]:
    """The routes that come with every forward pass of the policy in training, update by update."""
    seen: list[list[Any]] = [[]]
    forward = trainer._forward

    def listen(micro_batch: Any, **options: Any) -> Any:
        seen[-1].append(micro_batch.inputs.experts)
        return forward(micro_batch, **options)

    trainer._forward = listen  # type: ignore[method-assign]
    trainer._optimizer.register_step_post_hook(lambda *_: seen.append([]))
    return seen


def gradients_of(trainer: Trainer, step: Any, num_updates: int) -> list[dict[str, Tensor]]:
    caught: list[dict[str, Tensor]] = []
    named = dict(trainer.policy.model.named_parameters())
    trainer._optimizer.register_step_pre_hook(
        lambda *_: caught.append({n: p.grad.clone() for n, p in named.items() if p.grad is not None})
    )
    trainer.step(step, num_updates)
    return caught


@pytest.mark.parametrize("budget", [4096, 60])
def test_the_first_update_is_what_it_is_without(moe: Bench, budget: int) -> None:
    plain = gradients_of(moe.trainer(algorithm_of("sat-gspo"), lr=LR), step_of(moe.groups, budget), 2)
    replayed = gradients_of(moe.trainer(repeating(), lr=LR), step_of(moe.groups, budget), 2)
    assert same_weights(plain[0], replayed[0])
    assert not same_weights(plain[1], replayed[1])


@pytest.mark.parametrize("budget", [4096, 60])
def test_later_updates_take_the_experts_of_the_first(moe: Bench, budget: int) -> None:
    trainer = moe.trainer(repeating(), lr=LR)
    step = step_of(moe.groups, budget)
    wanted = [trainer.policy.routes(m.inputs) for m in step.micro_batches]
    seen = passes_of(trainer)
    trainer.step(step, 3)
    moved = [trainer.policy.routes(m.inputs) for m in step.micro_batches]
    assert any(not torch.equal(*pair) for pair in zip(wanted, moved, strict=True))  # else this says nothing
    first, *later = (one for one in seen if one)
    assert all(experts is None for experts in first)
    assert len(later) == 2
    for update in later:
        assert len(update) % len(wanted) == 0
        for number, experts in enumerate(update):
            assert torch.equal(experts, wanted[number % len(wanted)])


def test_a_batch_does_not_take_the_experts_of_the_batch_before(moe: Bench) -> None:
    trainer = moe.trainer(repeating(), lr=LR)
    trainer.step(step_of(moe.groups, 60), 2)
    step = step_of([group_of(0, moe.groups[0].rollouts[:3])])
    (wanted,) = (trainer.policy.routes(m.inputs) for m in step.micro_batches)
    seen = passes_of(trainer)
    trainer.step(step, 2)
    assert seen[0] == [None]
    assert torch.equal(seen[1][0], wanted)


def test_one_update_records_nothing(moe: Bench) -> None:
    trainer = moe.trainer(repeating(), lr=LR)
    trainer.gradient_norms(step_of(moe.groups))
    with_it = moe.trial(trainer, step_of(moe.groups))
    assert not trainer._first_routes._noted  # type: ignore[union-attr]
    assert same_weights(
        with_it.weights, moe.trial(moe.trainer(algorithm_of("sat-gspo"), lr=LR), step_of(moe.groups)).weights
    )


def test_logits_of_experts_that_are_not_repeated_get_no_gradient(moe: Bench) -> None:
    trainer, step = moe.trainer(repeating(), lr=LR), step_of(moe.groups)
    routers = find_routers(trainer.policy.model)
    caught: list[list[tuple[Tensor, Tensor]]] = [[]]

    def listen(router: Any, given: Any, output: Any) -> None:
        logits, _, chosen = output
        if logits.requires_grad:
            logits.register_hook(lambda gradient: caught[-1].append((gradient, chosen)))

    hooks = [routers.layers[i].get_submodule(name).register_forward_hook(listen) for i, name in routers.places.items()]
    trainer._optimizer.register_step_post_hook(lambda *_: caught.append([]))
    own = trainer.policy.routes(step.micro_batches[0].inputs)
    trainer.step(step, 2)
    for hook in hooks:
        hook.remove()
    assert len(caught[1]) == routers.shape.num_layers
    for number, (gradient, chosen) in enumerate(reversed(caught[1])):
        assert torch.equal(chosen.sort(-1).values, own[:, :, number].flatten(0, 1).long().sort(-1).values)
        assert (gradient.scatter(-1, chosen, 0.0) == 0).all()
        assert gradient.abs().max() > 0


def test_layers_computed_again_give_the_same_updates(moe: Bench) -> None:
    plain = gradients_of(moe.trainer(repeating(), lr=LR), step_of(moe.groups, 60), 2)
    again = gradients_of(moe.trainer(repeating(), lr=LR, gradient_checkpointing=True), step_of(moe.groups, 60), 2)
    moe.loaded.model.gradient_checkpointing_disable()
    for one, other in zip(plain, again, strict=True):
        assert_same_gradient(one, other, 1e-6)


def test_routes_of_the_trainer_are_those_of_its_model_alone(moe: Bench) -> None:
    """What the first pass takes down is what a pass of its own says, token by token."""
    trainer, step = moe.trainer(repeating()), step_of(moe.groups, 60)
    assert trainer._first_routes is not None
    for micro_batch in step.micro_batches:
        with trainer._first_routes.of(micro_batch):
            trainer._forward(micro_batch)
    laid = trainer._first_routes.laid(step)
    own = own_routes(step, trainer.policy)
    for micro_batch in laid.micro_batches:
        for place, row in enumerate(micro_batch.rows):
            assert micro_batch.inputs.experts is not None
            known = own[row.rollout.id][: row.num_tokens - 1]
            assert micro_batch.inputs.experts[place, : len(known)].tolist() == known.tolist()


SEVERAL = "pipeline.updates_per_batch=2"


def test_the_engine_is_not_asked_for_routes_that_the_trainer_repeats_of_itself() -> None:
    for name, wanted in (("sat-gspo-r2", False), ("sat-gspo-r3", True)):
        assert _sampling(load(settings=[f"algorithm.preset={name}", SEVERAL])).routing is wanted


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["algorithm.preset=gspo-r2"], "pipeline.updates_per_batch = 1 has none: set it to 2 or more, or source"),
        (
            [SEVERAL, "algorithm.replay=[{name='routing'}, {name='routing', source='trainer'}]"],
            "names each replay once; got one of them twice",
        ),
    ],
)
def test_a_replay_that_would_do_nothing_or_two_things_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(settings=settings)


def test_a_dense_model_has_no_routes_to_repeat() -> None:
    bench = Bench(loaded_of("tied"))
    with pytest.raises(ModelError, match="a dense model has none at all"):
        bench.trainer(repeating()).step(step_of(bench.groups), 2)
