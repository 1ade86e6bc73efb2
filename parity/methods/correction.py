"""Weights and masks for what the ratio against the anchor cannot see, on PPO's clip."""

from __future__ import annotations

from typing import Any

from parity.case import Case
from parity.methods.clip import PPO
from parity.sides import Tether, table
from parity.trl_side import TRL
from parity.verl_side import OFF, Verl


def _ours(*corrections: dict[str, Any], level: str = "token") -> Tether:
    return Tether(table(rule=PPO, proximal="anchor", level=level, corrections=list(corrections)))


def _verl(**correction: Any) -> Verl:
    return Verl("vanilla", {"clip_ratio_c": OFF}, correction)


def _trl(mode: str, **more: Any) -> TRL:
    return TRL({"loss_type": "bnpo", "use_vllm": True, "vllm_importance_sampling_mode": mode, **more})


TIS = {"name": "tis", "cap": 2.0}
CASES = (
    Case(
        method="TIS, per token",
        ours=_ours(TIS),
        theirs=_verl(rollout_is="token", rollout_is_threshold=2.0),
    ),
    Case(
        method="TIS, per token",
        ours=_ours(TIS),
        theirs=_trl("token_truncate", vllm_importance_sampling_clip_max=2.0),
    ),
)
