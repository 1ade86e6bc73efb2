"""tether's presets as they are, and what a user of the other libraries sets for the same."""

from __future__ import annotations

from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from parity.batches import LONGEST
from parity.case import Case
from parity.sides import Side, Tether
from parity.trl_side import TRL
from parity.verl_side import OFF, Verl
from tether import PRESETS

BY_RESPONSE = {"loss_agg_mode": "seq-mean-token-mean"}
CENTRED = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": LONGEST}
PER_RESPONSE = {"importance_sampling_level": "sequence"}
DELTA_TV, DELTA_KL = ({"clip_ratio_low": d, "clip_ratio_high": d, "clip_ratio_c": 20.0} for d in (0.15, 0.05))


def _ours(name: str) -> Tether:
    table = PRESETS[name]
    if table["aggregation"]["name"] == "seq-mean-token-sum-norm":  # a recipe takes the engine's longest answer
        table = {**table, "aggregation": {**table["aggregation"], "horizon": LONGEST}}
    return Tether(table, name=f"preset {name}")


THEIRS: dict[str, tuple[Side, ...]] = {
    "grpo": (Verl("vanilla", {**BY_RESPONSE, "clip_ratio_c": OFF}), TRL({"loss_type": "grpo"})),
    "dapo": (
        Verl("vanilla", {"clip_ratio_high": 0.28, "clip_ratio_c": OFF}),
        TRL({"loss_type": "dapo", "epsilon_high": 0.28}),
    ),
    "dual-clip": (Verl("vanilla", BY_RESPONSE), TRL({"loss_type": "grpo", "delta": 3.0})),
    "dr-grpo": (
        Verl("vanilla", {**CENTRED, "clip_ratio_c": OFF}),
        TRL({"loss_type": "dr_grpo", "max_completion_length": LONGEST}),
    ),
    "gspo": (Verl("gspo", BY_RESPONSE), TRL({"loss_type": "grpo", **PER_RESPONSE})),
    "luspo": (Verl("gspo", {"loss_agg_mode": "seq-mean-token-sum"}), TRL({"loss_type": "luspo", **PER_RESPONSE})),
    "dppo": (Verl("dppo_tv", {**BY_RESPONSE, **DELTA_TV}),),
    "dppo-kl": (Verl("dppo_kl", {**BY_RESPONSE, **DELTA_KL}),),
    "cispo": (Verl("cispo", {**BY_RESPONSE, "clip_ratio_low": 1.0}),),
    "sapo": (Verl("sapo", BY_RESPONSE), TRL({"loss_type": "sapo"})),
    "gmpo": (Verl("geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}), TRL({}, GMPOTrainer, GMPOConfig)),
    "vespo": (TRL({"loss_type": "vespo"}),),
}
CASES = tuple(Case(method=name, ours=_ours(name), theirs=side) for name, sides in THEIRS.items() for side in sides)
