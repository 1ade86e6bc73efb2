"""Gates of replayed experts."""

from __future__ import annotations

import pytest
import torch

from tether.replay.routing import Gates

from .tables import Row, assert_close, inputs, label, rows


def gates(logits: torch.Tensor, mask: list[int], *, renormalize: bool = True) -> torch.Tensor:
    """Over all experts, 0 outside the mask."""
    experts = torch.tensor([[e for e, chosen in enumerate(mask) if chosen]])
    spread = torch.zeros(1, len(mask)).scatter(-1, experts, Gates(renormalize=renormalize)(logits[None], experts))
    return spread[0]


@pytest.mark.parametrize("row", rows("R3 gate"), ids=label)
def test_gates_and_their_gradient_in_the_router_logits(row: Row) -> None:
    logits = torch.tensor(row["router logits"], requires_grad=True)
    got = gates(logits, row["mask"])
    assert_close(got, row["g"])
    (gradient,) = torch.autograd.grad(got[row["mask"].index(1)], logits)
    assert_close(gradient, row["d g_first/d z"])


def test_a_mask_on_the_softmax_over_all_is_another_gate_unless_it_is_renormalized() -> None:
    name = "R3 vs full-softmax-then-mask (wrong unless renormalised)"
    (row,) = rows(name)
    logits, mask = torch.tensor(inputs(name)["logits"]), inputs(name)["mask"]
    assert_close(gates(logits, mask), row["replayed gate"])
    assert_close(gates(logits, mask, renormalize=False), row["masked, unnormalised"])
    assert_close(gates(logits, [1, 1, 1, 1], renormalize=False), row["full softmax"])
    masked = torch.tensor(row["masked, unnormalised"])
    assert_close(masked / masked.sum(), row["replayed gate"])
