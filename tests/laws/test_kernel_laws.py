"""What every registered kernel promises: psi(0) = 1, psi(q) = 1/2, never increasing, in (0, 1]; 1 at infinite q."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.registry import KERNELS

kernels = pytest.mark.parametrize("kernel", [cls() for _, cls in KERNELS.items()], ids=KERNELS.names())
REACHES_ZERO = {"step"}
"""Kernels that leave nothing of a gated radius, by definition."""


@kernels
@given(q=st.floats(1e-6, 10.0))
def test_kernel_keeps_its_promises(kernel, q):
    reference = torch.tensor(q)
    u = torch.cat([torch.zeros(1), torch.ones(1), torch.linspace(0.0, 50.0, 400)]) * reference
    psi = kernel(u, reference)
    assert psi[0] == 1.0
    assert psi[1] == pytest.approx(0.5, abs=1e-6)
    assert ((psi >= 0) & (psi <= 1)).all()
    assert bool((psi == 0).any()) == (KERNELS.name_of(kernel) in REACHES_ZERO)
    assert (psi[2:].diff() <= 0).all()


@kernels
@given(q=st.floats(1e-15, 1.0))
def test_only_a_step_underflows_at_the_guard_of_the_log_ratio(kernel, q):
    psi = kernel(torch.tensor([20.0]), torch.tensor(q))
    assert bool(psi > 0) == (KERNELS.name_of(kernel) not in REACHES_ZERO)


@kernels
def test_an_infinite_scale_contracts_nothing(kernel):
    u = torch.tensor([0.0, 1e-30, 0.3, 20.0])
    assert kernel(u, torch.tensor(math.inf)).equal(torch.ones(4))
    mixed = kernel(u, torch.tensor([math.inf, 1e-30, math.inf, 10.0]))
    assert mixed[[0, 1, 2]].tolist() == pytest.approx([1.0, 0.5, 1.0], abs=1e-6)
    assert mixed[3] < 0.5


@kernels
@given(drawn=st.lists(st.tuples(st.floats(0, 20), st.floats(1e-3, 2)), min_size=1, max_size=20))
def test_one_scale_a_token_gives_each_what_it_gives_alone(kernel, drawn):
    u, q = (torch.tensor(column) for column in zip(*drawn, strict=True))
    alone = torch.stack([kernel(one, its) for one, its in zip(u, q, strict=True)])
    torch.testing.assert_close(kernel(u, q), alone, rtol=1e-6, atol=0.0)


@kernels
@given(q=st.floats(1e-3, 1.0), scale=st.sampled_from([0.25, 2.0, 64.0]))
def test_kernel_depends_on_the_quotient_alone(kernel, q, scale):
    u = torch.linspace(0.0, 5.0, 50)
    assert kernel(scale * u, torch.tensor(scale * q)).equal(kernel(u, torch.tensor(q)))
