"""The engine tells which experts every token went through."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from tests.engines.tiny import VOCABULARY, ManualClock, NumberedStore, build, engine_of, requests, sample, state
from tether.errors import DataError
from tether.models.routers import find_routers
from tether.ports import GenerationRequest
from tether.records import NO_EXPERT, Completion, Experts

KINDS = ["moe", "eager", "plain-gates", "some-dense", "mixtral", "olmoe", "gpt-oss", "deepseek"]


def asked(count: int) -> list[GenerationRequest]:
    """Prompts of many lengths and many limits; every third prompt is that of the request before it."""
    made = [dataclasses.replace(r, routing=True) for r in requests(count)]
    return [
        dataclasses.replace(r, prompt_ids=made[i - (i % 3 == 2)].prompt_ids, max_tokens=4 + i % 4 * 5)
        for i, r in enumerate(made)
    ]


def routes_of(completion: Completion) -> Experts:
    assert completion.experts is not None
    return completion.experts


def chosen_by(model: Any, request: GenerationRequest, completion: Completion) -> np.ndarray:
    """Experts in one forward of the unpadded sequence, without a cache."""
    routers = find_routers(model)
    ids = torch.tensor([[*request.prompt_ids, *completion.token_ids.tolist()]])
    with torch.no_grad(), routers.recording() as chosen:
        model(input_ids=ids, use_cache=False)
    return torch.stack([passes[0] for passes in chosen], dim=1).numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_routes_of_prompt_and_completion_are_those_of_a_plain_forward(kind: str) -> None:
    """With left padding, prompts that are shared and read once, rows that leave the batch, and several lots."""
    model, given = build(kind), asked(23)
    shape = find_routers(model).shape
    done = sample(engine_of(build(kind), dtype="float32", yield_every=3, max_rows=10), given)
    assert {c.finish for c in done} == {"stop", "length"}
    for request, completion in zip(given, done, strict=True):
        experts = routes_of(completion)
        assert experts.shape == (len(request.prompt_ids) + len(completion), shape.num_layers, shape.k)
        assert experts.dtype == (np.int8 if shape.num_experts <= 128 else np.int16)
        assert (experts[-1] == NO_EXPERT).all()
        assert experts[:-1].tolist() == chosen_by(model, request, completion)[:-1].tolist()


def test_routes_do_not_depend_on_the_batch_or_the_blocks() -> None:
    model, given = build("moe"), asked(12)
    together = sample(engine_of(model, dtype="float32"), given)
    for options in ({"max_rows": 1}, {"yield_every": 1}, {"max_rows": 5, "yield_every": 3}):
        for one, other in zip(sample(engine_of(model, dtype="float32", **options), given), together, strict=True):
            assert routes_of(one).tolist() == routes_of(other).tolist()


def test_those_who_do_not_ask_get_none_and_the_same_sample() -> None:
    model, given = build("moe"), asked(9)
    quiet = [dataclasses.replace(r, routing=i % 2 == 0) for i, r in enumerate(given)]
    some, every = (sample(engine_of(model, dtype="float32"), r) for r in (quiet, given))
    assert [c.experts is not None for c in some] == [r.routing for r in quiet]
    for one, other in zip(some, every, strict=True):
        assert one.token_ids.tolist() == other.token_ids.tolist()
        assert one.logp.tobytes() == other.logp.tobytes()


def test_nothing_listens_to_the_routers_unless_asked() -> None:
    model, hooks = build("moe"), []
    gate = model.model.layers[1].mlp.gate
    model.register_forward_hook(lambda *_: hooks.append(len(gate._forward_hooks)))
    given = asked(2)
    sample(engine_of(model), [dataclasses.replace(r, routing=False) for r in given])
    assert set(hooks) == {0}
    hooks.clear()
    sample(engine_of(model), given)
    assert set(hooks) == {1}
    assert not gate._forward_hooks


def test_a_token_after_an_update_has_the_route_of_the_new_weights() -> None:
    clock, store = ManualClock(), NumberedStore("float32")
    engine = engine_of(build("moe"), clock=clock, store=store, dtype="float32", eos_ids=(VOCABULARY,), yield_every=4)
    newer = store.publish(8, state(build("moe", seed=1)))
    clock.at_yield = lambda count: engine.load(newer, "keep") if count == 1 else None
    request = dataclasses.replace(requests(3)[2], max_tokens=8, routing=True)
    (done,) = sample(engine, [request])
    old, new = (chosen_by(build("moe", seed=seed), request, done)[:, 0] for seed in (0, 1))
    first = routes_of(done)[:, 0]  # the first layer's choice depends on no cache but that of its own attention
    read_by_old = len(request.prompt_ids) + 3
    assert first[:read_by_old].tolist() == old[:read_by_old].tolist()
    assert (first[read_by_old:-1] != new[read_by_old:-1]).mean() < (first[read_by_old:-1] != old[read_by_old:-1]).mean()


@pytest.mark.parametrize(("kind", "knows"), [("moe", True), ("mixtral", True), ("tied", False), ("noisy-gates", False)])
def test_it_can_report_routes_of_models_whose_routers_are_known(kind: str, knows: bool) -> None:
    engine = engine_of(build(kind))
    assert engine.capabilities.routing is knows
    if not knows:
        with pytest.raises(DataError, match=r"request 'r0' asks for them: take a mixture of experts, or no replay"):
            sample(engine, asked(1))


@pytest.mark.parametrize("shape", [(3, 2), (2, 3, 2)])
def test_routes_that_cannot_cover_a_prompt_are_no_completion(shape: tuple[int, ...]) -> None:
    given = {"token_ids": np.zeros(2, np.int32), "version": np.zeros(2, np.int32), "finish": "stop"}
    numbers = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"must be \[prompt and sampled tokens, layers, k\]; got .* for 2 sampled"):
        Completion(**given, logp=numbers, entropy=numbers, experts=np.zeros(shape, np.int8))
