"""Penalties for leaving the reference, added to PPO's clip."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from parity.batches import Batch
from parity.case import Case, Difference
from parity.formulas import Clip, Formula, aggregated
from parity.methods.clip import PPO
from parity.sides import Tether, table
from parity.trl_side import TRL
from parity.verl_side import OFF, Verl

COEFFICIENT = 0.5
"""Large, so that the penalty is seen beside the policy's loss."""


def _ours(name: str) -> Tether:
    return Tether(table(rule=PPO, kl={"name": name, "coefficient": COEFFICIENT}))


def _verl(kind: str) -> Verl:
    actor: dict[str, Any] = {"use_kl_loss": True, "kl_loss_type": kind, "kl_loss_coef": COEFFICIENT}
    return Verl("vanilla", {**actor, "clip_ratio_c": OFF})


def _trl(**more: Any) -> TRL:
    return TRL({"loss_type": "bnpo", "beta": COEFFICIENT, **more})


def _ratio_times_k3(batch: Batch, logp: Tensor) -> Tensor:
    off = batch.reference - logp
    estimate = (logp - batch.behavior).exp() * (off.exp() - off - 1)
    policy = Clip("token", "token-mean").loss(batch, logp)
    return policy + COEFFICIENT * aggregated(estimate, batch, "token-mean")


CASES = (
    Case(method="KL penalty k1", ours=_ours("k1"), theirs=_verl("k1")),
    Case(method="KL penalty k2", ours=_ours("k2"), theirs=_verl("k2")),
    Case(method="KL penalty low_var_kl", ours=_ours("low_var_kl"), theirs=_verl("low_var_kl")),
    Case(
        method="KL penalty k3",
        ours=_ours("k3"),
        theirs=_verl("k3"),
        difference=Difference(
            "verl holds k3 within 10 under either name; tether's k3 is free and its low_var_kl is held.",
            _ours("low_var_kl"),
        ),
    ),
    Case(method="KL penalty k3", ours=_ours("k3"), theirs=_trl(use_bias_correction_kl=False)),
    Case(
        method="KL penalty k3, TRL's defaults",
        ours=_ours("k3"),
        theirs=_trl(),
        difference=Difference(
            "TRL multiplies the estimate by the ratio, with gradient, unless told not to: DeepSeek-V3.2's way.",
            Formula(_ratio_times_k3),
        ),
    ),
)
