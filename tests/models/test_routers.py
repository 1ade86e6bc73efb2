"""Routers of a model: found, listened to, overruled."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engines.tiny import VOCABULARY, build
from tests.pipeline.small import loaded_of
from tether.errors import ModelError
from tether.models import routers as routers_module
from tether.models.policy import ModelInputs, Policy
from tether.models.routers import RoutingShape, find_routers, replayable, routing_of
from tether.records import NO_EXPERT
from tether.replay.routing import Gates

KINDS = ["moe", "eager", "plain-gates", "some-dense", "mixtral", "olmoe", "gpt-oss", "deepseek"]
GATES = {
    "moe": Gates(),
    "plain-gates": Gates(renormalize=False),
    "mixtral": Gates(),
    "olmoe": Gates(renormalize=False),
    "gpt-oss": Gates(),
    "deepseek": Gates(score="sigmoid", scale=2.5),
}


def inputs_of(rows: int = 3, length: int = 9, seed: int = 0) -> ModelInputs:
    """Every token but the first of each row is predicted."""
    ids = torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    row = torch.arange(rows).repeat_interleave(length - 1)
    column = torch.arange(length - 1).repeat(rows)
    return ModelInputs(input_ids=ids, row=row, column=column, ids=ids[:, 1:].flatten())


def some_routes(policy: Policy, inputs: ModelInputs, seed: int = 0) -> Tensor:
    """Random sets of experts."""
    shape = policy.routers.shape
    count = inputs.input_ids.numel() * shape.num_layers
    numbers = torch.Generator().manual_seed(seed)
    picked = torch.rand(count, shape.num_experts, generator=numbers).argsort(-1)[:, : shape.k]
    return picked.view(*inputs.input_ids.shape, shape.num_layers, shape.k).to(shape.dtype)


def gradients(policy: Policy, run: Callable[[], Tensor]) -> dict[str, Tensor]:
    policy.model.zero_grad(set_to_none=True)
    run().backward()
    return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}


def logp(policy: Policy, inputs: ModelInputs) -> Tensor:
    return policy(inputs, temperature=1.0, entropy="none").logp


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_replaying_the_routers_own_choice_changes_nothing(kind: str, dtype: torch.dtype) -> None:
    loaded = loaded_of(kind)
    loaded.model.to(dtype)
    policy, inputs = Policy(loaded), inputs_of()
    assert policy.unroutable_because == ""
    own = policy.routes(inputs)
    with torch.no_grad():
        plain, replayed = (logp(policy, replace(inputs, experts=e)) for e in (None, own))
    tolerance = 2e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(replayed, plain, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_follows_the_routes_it_is_given_in_every_layer(kind: str) -> None:
    """What the experts are really asked for is what was given, set by set; the hidden states move."""
    policy, inputs = Policy(loaded_of(kind)), inputs_of()
    given, routers = some_routes(policy, inputs), policy.routers
    asked: list[Tensor] = []
    hooks = []
    for layer in routers.places:
        experts = routers.layers[layer].mlp.experts
        hooks.append(
            experts.register_forward_pre_hook(
                lambda _, args, kwargs: asked.append(
                    next(a for a in (*args, *kwargs.values()) if not a.dtype.is_floating_point)
                ),
                with_kwargs=True,
            )
        )
    with torch.no_grad():
        moved = logp(policy, replace(inputs, experts=given)) - logp(policy, inputs)
    for hook in hooks:
        hook.remove()
    replayed = torch.stack(asked[: len(hooks)], dim=1).view(given.shape)
    assert replayed.sort(-1).values.tolist() == given.sort(-1).values.tolist()
    assert moved.abs().max() > 0.01


def test_in_what_order_the_experts_of_a_token_are_named_shows_in_no_bit() -> None:
    policy, inputs = Policy(loaded_of("olmoe")), inputs_of()
    given = some_routes(policy, inputs)
    with torch.no_grad():
        one, other = (logp(policy, replace(inputs, experts=e)) for e in (given, given.flip(-1)))
    assert torch.equal(one, other)


def test_the_routers_logits_outside_the_set_get_no_gradient() -> None:
    policy, inputs = Policy(loaded_of("moe")), inputs_of()
    given = some_routes(policy, inputs)
    given = torch.where(given >= 6, (given + 2) % 8, given)  # 6 and 7 are never chosen
    given[..., 1] = torch.where(given[..., 0] == given[..., 1], (given[..., 0] + 1) % 6, given[..., 1])
    grads = gradients(policy, lambda: logp(policy, replace(inputs, experts=given)).sum())
    routers = {name: g for name, g in grads.items() if name.endswith("mlp.gate.weight")}
    assert len(routers) == 3
    for gradient in routers.values():
        assert (gradient[6:] == 0).all()
        assert (gradient[:6].abs().sum(-1) > 0).all()


@pytest.mark.parametrize("kind", ["moe", "plain-gates", "some-dense", "mixtral", "olmoe", "gpt-oss", "deepseek"])
def test_layers_computed_again_in_backward_take_the_routes_of_their_own_forward(kind: str) -> None:
    """Also when two forward passes with other routes, and one with none, ran before the first backward."""
    plain, again = Policy(loaded_of(kind)), Policy(loaded_of(kind), gradient_checkpointing=True)
    inputs, longer = inputs_of(), inputs_of(rows=2, length=12, seed=1)

    def run(policy: Policy) -> Tensor:
        pieces = [
            logp(policy, replace(inputs, experts=some_routes(policy, inputs, seed=1))),
            logp(policy, replace(longer, experts=some_routes(policy, longer, seed=2))),
            logp(policy, inputs),
        ]
        return torch.stack([piece.square().mean() for piece in pieces]).sum()

    wanted, got = (gradients(policy, lambda policy=policy: run(policy)) for policy in (plain, again))
    assert wanted.keys() == got.keys()
    for name in wanted:
        assert torch.equal(got[name], wanted[name]), name


def test_what_is_computed_again_is_what_was_computed_bit_by_bit() -> None:
    policy, inputs = Policy(loaded_of("moe"), gradient_checkpointing=True), inputs_of()
    seen: list[list[Tensor]] = []
    gate = policy.routers.layers[1].mlp.gate
    gate.register_forward_hook(lambda _, given, out: seen.append([x.detach().clone() for x in (*given, *out)]))
    value = logp(policy, replace(inputs, experts=some_routes(policy, inputs))).sum()
    with torch.no_grad():
        logp(policy, inputs)
    value.backward()
    forward, between, again = seen
    assert all(map(torch.equal, forward, again))
    assert not any(map(torch.equal, forward, between))


def test_other_weights_in_the_place_of_the_models_are_replayed_too() -> None:
    policy, other = Policy(loaded_of("moe", seed=0)), Policy(loaded_of("moe", seed=1))
    inputs = inputs_of()
    given = replace(inputs, experts=some_routes(policy, inputs))

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = policy.model

        def forward(self) -> Tensor:
            return logp(policy, given)

    weights = {f"model.{name}": tensor for name, tensor in other.model.state_dict().items()}
    with torch.no_grad():
        swapped = torch.func.functional_call(Module(), weights, ())
        assert torch.equal(swapped, logp(other, given))
        assert not torch.equal(swapped, logp(policy, given))


def test_a_marked_token_takes_the_routers_own_choice() -> None:
    policy, inputs = Policy(loaded_of("moe")), inputs_of()
    own, marked = policy.routes(inputs), some_routes(policy, inputs)
    mixed = torch.where(torch.arange(9)[:, None, None] < 5, own, marked)
    marked[:, :5, :, 0] = NO_EXPERT  # one place of a set is enough
    with torch.no_grad():
        one, other = (logp(policy, replace(inputs, experts=e)) for e in (marked, mixed))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_routes_without_a_replay_are_those_the_inputs_bring_or_not() -> None:
    policy, inputs = Policy(loaded_of("moe")), inputs_of()
    brought = replace(inputs, experts=some_routes(policy, inputs))
    assert torch.equal(policy.routes(brought), policy.routes(inputs))
    assert policy.routes(inputs).dtype == torch.int8


def test_a_replay_leaves_nothing_behind() -> None:
    policy, inputs = Policy(loaded_of("moe")), inputs_of()
    with torch.no_grad():
        before = logp(policy, inputs)
        logp(policy, replace(inputs, experts=some_routes(policy, inputs)))
        assert all(vars(layer.mlp.gate)["_tether_replay"] is None for layer in policy.routers.layers)
        assert torch.equal(logp(policy, inputs), before)


def test_a_replay_that_broke_off_is_not_taken_up_by_the_next_pass() -> None:
    policy, inputs = Policy(loaded_of("moe")), inputs_of()

    def broken(*_: Any) -> None:
        raise MemoryError

    with torch.no_grad():
        before = logp(policy, inputs)
        hook = policy.routers.layers[1].self_attn.register_forward_hook(broken)
        with pytest.raises(MemoryError):
            logp(policy, replace(inputs, experts=some_routes(policy, inputs)))
        hook.remove()
        assert torch.equal(logp(policy, inputs), before)


@pytest.mark.parametrize("times", [1, 3])
def test_a_model_has_its_hooks_once_and_so_has_a_copy(times: int) -> None:
    loaded = loaded_of("moe")
    policies = [Policy(loaded) for _ in range(times)]
    twin = Policy(replace(loaded, model=copy.deepcopy(loaded.model)))
    for policy in (*policies, twin):
        assert {len(layer._forward_pre_hooks) for layer in policy.routers.layers} == {1}
        assert {len(layer.mlp.gate._forward_hooks) for layer in policy.routers.layers} == {1}
    inputs = inputs_of()
    given = replace(inputs, experts=some_routes(twin, inputs))
    with torch.no_grad():
        assert torch.equal(logp(twin, given), logp(policies[-1], given))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda e: e[:2], "rows 2 instead of 3"),
        (lambda e: e[:, :8], "tokens 8 instead of 9"),
        (lambda e: e[:, :, :2], "layers 2 instead of 3"),
        (lambda e: torch.cat([e, e[..., :1]], -1), "experts a token 3 instead of 2"),
        (lambda e: e[..., 0], "another number of axes"),
    ],
)
def test_routes_of_another_shape_are_refused_by_the_name_of_the_axis(change: Any, told: str) -> None:
    policy, inputs = Policy(loaded_of("moe")), inputs_of()
    experts = change(some_routes(policy, inputs))
    object.__setattr__(inputs, "experts", experts)
    with pytest.raises(ModelError, match=rf"must be \[rows, tokens, layers, experts a token\] = .*: {told}"):
        logp(policy, inputs)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_routers_gates_are_is_found_out(kind: str, dtype: torch.dtype) -> None:
    assert find_routers(build(kind).to(dtype)).gates() == GATES[kind]


def test_the_shape_of_routes_counts_the_layers_that_have_a_router() -> None:
    assert routing_of(build("some-dense")) == RoutingShape(num_layers=2, k=3, num_experts=8)
    assert routing_of(build("mixtral")) == RoutingShape(num_layers=3, k=2, num_experts=4)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("tied", r"no router of a form that tether knows \(a dense model has none at all\)"),
        ("gpt2", "no router of a form that tether knows"),
        ("noisy-gates", "gates of its router PhimoeTopKRouter follow from its logits in no known way"),
    ],
)
def test_a_model_without_known_routers_says_so_and_refuses_routes(kind: str, reason: str) -> None:
    loaded = loaded_of(kind)
    assert routing_of(loaded.model) is None
    policy, inputs = Policy(loaded), inputs_of()
    assert torch.isfinite(logp(policy, inputs)).all()
    routes = torch.zeros(3, 9, 1, 2, dtype=torch.int8)
    for ask in (
        lambda: logp(policy, replace(inputs, experts=routes)),
        lambda: policy.routes(inputs),
    ):
        with pytest.raises(ModelError, match=rf"routers can be overruled; .* cannot: .*{reason}.*; take a preset"):
            ask()


@pytest.mark.parametrize("fault", ["ignored", "swallowed", "other gates"])
def test_a_model_in_which_a_replay_is_not_one_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    model = build("moe")
    gate = model.model.layers[1].mlp.gate
    if fault == "ignored":  # experts that do not follow their router
        for layer in model.model.layers:
            layer.mlp.experts.down_proj.data.zero_()
        message = "other routes do not change its hidden states"
    elif fault == "swallowed":
        forward = model.model.forward
        monkeypatch.setattr(model.model, "forward", lambda tether_replay=None, **given: forward(**given))
        message = "routes reached 0 of 3 routers"
    else:
        gate.norm_topk_prob = False
        message = "its routers do not all make the same of their logits"
    with pytest.raises(ModelError, match=message):
        replayable(model)


def test_a_model_that_breaks_on_the_routes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(routers: Any) -> Any:
        raise TypeError("forward() got an unexpected keyword argument")

    monkeypatch.setattr(routers_module, "_probe", broken)
    policy = Policy(loaded_of("moe"))
    assert "does not hand routes down to its layers (TypeError: forward() got" in policy.unroutable_because


def test_the_trainer_rolls_no_dice_in_a_router() -> None:
    import transformers as hf

    config = build("mixtral").config
    config.router_jitter_noise = 0.5
    torch.manual_seed(0)
    policy, inputs = Policy(replace(loaded_of("moe"), model=hf.MixtralForCausalLM(config))), inputs_of()
    with torch.no_grad():
        assert torch.equal(logp(policy, inputs), logp(policy, inputs))
