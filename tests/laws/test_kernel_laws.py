"""What every registered kernel promises: psi(0) = 1, psi(q) = 1/2, never increasing, in (0, 1]."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tether.registry import KERNELS

kernels = pytest.mark.parametrize("kernel", [cls() for _, cls in KERNELS.items()], ids=KERNELS.names())


@kernels
@given(q=st.floats(1e-6, 10.0))
def test_kernel_keeps_its_promises(kernel, q):
    reference = torch.tensor(q)
    u = torch.cat([torch.zeros(1), torch.ones(1), torch.linspace(0.0, 50.0, 400)]) * reference
    psi = kernel(u, reference)
    assert psi[0] == 1.0
    assert psi[1] == pytest.approx(0.5, abs=1e-6)
    assert ((psi > 0) & (psi <= 1)).all()
    assert (psi[2:].diff() <= 0).all()


@kernels
@given(q=st.floats(1e-3, 1.0), scale=st.sampled_from([0.25, 2.0, 64.0]))
def test_kernel_depends_on_the_quotient_alone(kernel, q, scale):
    u = torch.linspace(0.0, 5.0, 50)
    assert kernel(scale * u, torch.tensor(scale * q)).equal(kernel(u, torch.tensor(q)))
