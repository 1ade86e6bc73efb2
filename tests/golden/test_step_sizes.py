"""The factor of the learning rate on worked numbers."""

from __future__ import annotations

import math

import pytest
import torch

from tether.core.loss import measure_traits
from tether.core.step_sizes.vcpo import VCPO, EffectiveShare

from .tables import assert_close, rows, tokens_with


@pytest.mark.parametrize("row", rows("VCPO ESS"), ids=lambda row: str(row["w"]))
def test_vcpo_scales_by_the_effective_share_of_responses(row):
    """A response of two tokens stands for each weight; a weight of 0 is beyond the guard: e^-20 stands for it."""
    d = [half for w in row["w"] for half in [(math.log(w) if w else -30.0) / 2] * 2]
    tokens = tokens_with(behavior=[0.0] * 8, advantage=[1.0] * 8, sequence=[0, 0, 1, 1, 2, 2, 3, 3])
    step_size = VCPO()
    ratio = step_size.traits.measured("token")
    stats = measure_traits([step_size.traits], "token", [(torch.tensor(d), tokens)])[ratio]
    assert_close(stats[EffectiveShare()], row["rho_ess"])
    assert_close(stats[EffectiveShare()] * len(row["w"]), row["ESS"])
    assert_close(step_size(stats), row["lr scale sqrt"])
