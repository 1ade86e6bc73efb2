"""Losses in ``log pi`` with a detached coefficient."""

from __future__ import annotations

import torch
from torch import Tensor

from parity.batches import Batch
from parity.case import Case, Difference
from parity.formulas import Formula, aggregated
from parity.methods.correction import capped
from parity.sides import Tether, table
from parity.trl_side import TRL
from parity.verl_side import Verl

CISPO = {"name": "cispo", "epsilon_high": 0.2}
VESPO = {"name": "vespo"}


def _capped_at_a_fifth(batch: Batch, logp: Tensor) -> Tensor:
    weight = (logp.detach() - batch.behavior).exp().clamp(max=0.2)
    return aggregated(-weight * batch.everywhere * logp, batch, "token-mean")


def _weights_inside(batch: Batch, logp: Tensor) -> Tensor:
    weight = (batch.anchor - batch.behavior).exp().clamp(max=2.0)
    d = torch.where(batch.mask, logp.detach() - batch.anchor + weight.log(), 0.0).sum(1, keepdim=True)
    is_positive = batch.everywhere >= 0
    k, rate = torch.where(is_positive, 2.0, 3.0), torch.where(is_positive, 3.0, 2.0)
    phi = (k * d + rate * (1 - d.exp())).exp()
    return aggregated(-phi * batch.everywhere * logp, batch, "token-mean")


CASES = (
    Case(
        method="CISPO",
        ours=Tether(table(rule=CISPO)),
        theirs=Verl("cispo", {"clip_ratio_low": 1.0}),
    ),
    Case(method="CISPO", ours=Tether(table(rule=CISPO)), theirs=TRL({"loss_type": "cispo", "epsilon_high": 1.2})),
    Case(
        method="CISPO, verl's defaults",
        ours=Tether(table(rule=CISPO)),
        theirs=Verl("cispo"),
        difference=Difference(
            "verl's clip_ratio_low is 0.2 unless set, and holds the weight at 0.8 from below; the paper does not.",
            Tether(table(rule={**CISPO, "epsilon_low": 0.2})),
        ),
    ),
    Case(
        method="CISPO, the same epsilon",
        ours=Tether(table(rule=CISPO)),
        theirs=TRL({"loss_type": "cispo", "epsilon_high": 0.2}),
        difference=Difference(
            "TRL's epsilon_high is the cap itself, tether's and verl's is its distance from 1.",
            Formula(_capped_at_a_fifth),
        ),
    ),
    Case(
        method="REINFORCE with TIS",
        ours=Tether(table(rule={"name": "tis-reinforce", "cap": 2.0})),
        theirs=Verl(
            "bypass_mode",
            rollout_correction={"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 2.0},
        ),
    ),
    Case(method="VESPO", ours=Tether(table(rule=VESPO, level="product")), theirs=TRL({"loss_type": "vespo"})),
    Case(
        method="VESPO with TIS per token",
        ours=Tether(table(rule=VESPO, level="product", proximal="anchor", corrections=[capped("token")])),
        theirs=TRL(
            {
                "loss_type": "vespo",
                "use_vllm": True,
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_importance_sampling_clip_max": 2.0,
            }
        ),
        difference=Difference(
            "TRL multiplies the truncated weights of a response into W, which phi then fades; in tether they stand "
            "beside phi.",
            Formula(_weights_inside),
        ),
    ),
)
