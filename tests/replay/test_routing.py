"""The arithmetic of R3: gates of a given set of experts, and how far two routings are apart."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.registry import REPLAYS
from tether.replay.routing import Gates, Routing, share_rerouted

LOGITS = st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=8)


def test_routing_is_found_by_its_name() -> None:
    assert REPLAYS.build("routing", missing="own") == Routing(missing="own")


@given(LOGITS, st.booleans())
def test_the_gates_of_the_top_k_are_those_of_the_model(row: list[float], renormalize: bool) -> None:
    logits = torch.tensor([row])
    weight, experts = logits.softmax(-1).topk(2)
    wanted = weight / weight.sum(-1, keepdim=True) if renormalize else weight
    torch.testing.assert_close(Gates(renormalize=renormalize)(logits, experts), wanted, rtol=1e-5, atol=1e-7)


@given(LOGITS, st.booleans())
def test_an_expert_outside_the_set_gets_a_gradient_only_where_gates_are_not_renormalized(
    row: list[float], renormalize: bool
) -> None:
    logits = torch.tensor([row], requires_grad=True)
    weight = torch.tensor([[1.0, -2.0]])
    (gradient,) = torch.autograd.grad(
        (Gates(renormalize=renormalize)(logits, torch.tensor([[0, 2]])) * weight).sum(), logits
    )
    outside = [e for e in range(len(row)) if e not in (0, 2)]
    if renormalize:
        assert (gradient[0, outside] == 0).all()
        assert gradient.sum().abs() < 1e-6
    expected = torch.autograd.functional.jacobian(lambda z: (z.softmax(-1)[:, [0, 2]] * weight).sum(), logits)
    if not renormalize:
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_experts_that_the_router_has_left_behind_do_not_underflow_together(score: Any) -> None:
    logits = torch.tensor([[500.0, 0.0, -300.0, -301.0]], requires_grad=True)
    gates = Gates(score=score)(logits, torch.tensor([[2, 3]]))
    assert gates[0].tolist() == pytest.approx([1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))])
    (gradient,) = torch.autograd.grad(gates[0, 0], logits)
    assert gradient[0, 2] > 0.1


@given(LOGITS, st.floats(0.5, 3.0))
def test_renormalized_sigmoids_are_those_of_the_model(row: list[float], scale: float) -> None:
    logits = torch.tensor([row])
    experts = torch.tensor([[0, 3]])
    weight = logits.double().sigmoid().gather(-1, experts)
    wanted = (scale * weight / weight.sum(-1, keepdim=True)).float()
    torch.testing.assert_close(Gates(score="sigmoid", scale=scale)(logits, experts), wanted, rtol=1e-5, atol=1e-6)
    plain = Gates(score="sigmoid", scale=scale, renormalize=False)(logits, experts)
    torch.testing.assert_close(plain, (scale * weight).float(), rtol=1e-5, atol=1e-6)


def test_gates_are_float32_whatever_the_router_computes_in() -> None:
    logits = torch.tensor([[3.0, 1.0, 0.0]], dtype=torch.bfloat16)
    assert Gates()(logits, torch.tensor([[0, 1]])).dtype == torch.float32


def test_routes_are_compared_as_sets() -> None:
    one = np.array([[[0, 1, 2], [3, 4, 5]], [[0, 1, 2], [3, 4, 5]]], np.int8)
    other = np.array([[[2, 0, 1], [3, 4, 6]], [[0, 1, 2], [5, 4, 3]]], np.int16)
    assert share_rerouted(one, other) == 0.25
    assert share_rerouted(one, one[..., ::-1]) == 0.0


def test_routes_that_are_not_known_on_both_sides_are_not_compared() -> None:
    one = np.array([[[0, 1]], [[2, 3]], [[4, -1]]])
    other = np.array([[[0, 2]], [[-1, -1]], [[4, 5]]])
    assert share_rerouted(one, other) == 1.0
    assert math.isnan(share_rerouted(one[1:], other[1:]))


def test_routes_of_different_shapes_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"got \(3, 1, 2\) and \(2, 1, 2\)"):
        share_rerouted(np.zeros((3, 1, 2), np.int8), np.zeros((2, 1, 2), np.int8))
