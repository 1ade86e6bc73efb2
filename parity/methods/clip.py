"""PPO's clip and its variants, per token and per response."""

from __future__ import annotations

from parity.batches import beyond_guard, upwards
from parity.case import Case, Difference
from parity.formulas import Clip
from parity.sides import Tether, table
from parity.trl_side import TRL
from parity.verl_side import OFF, Verl

PPO = {"name": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.2}
HIGHER = {"name": "ppo", "epsilon_low": 0.2, "epsilon_high": 0.28}
DUAL = {**PPO, "dual_clip": 3.0}
DUAL_BY_DEFAULT = "verl always has the dual clip, at clip_ratio_c = 3; tether has it where it is asked for."

TOKEN = (
    Case(
        method="PPO",
        ours=Tether(table(rule=PPO)),
        theirs=Verl("vanilla", {"clip_ratio_c": OFF}),
    ),
    Case(method="PPO", ours=Tether(table(rule=PPO)), theirs=TRL({"loss_type": "bnpo"})),
    Case(
        method="PPO, verl's defaults",
        ours=Tether(table(rule=PPO)),
        theirs=Verl("vanilla"),
        difference=Difference(DUAL_BY_DEFAULT, Tether(table(rule=DUAL))),
    ),
    Case(
        method="PPO, clip-higher",
        ours=Tether(table(rule=HIGHER)),
        theirs=Verl("vanilla", {"clip_ratio_high": 0.28, "clip_ratio_c": OFF}),
    ),
    Case(
        method="PPO, clip-higher",
        ours=Tether(table(rule=HIGHER)),
        theirs=TRL({"loss_type": "dapo", "epsilon_high": 0.28}),
    ),
    Case(
        method="PPO, clip_ratio alone",
        ours=Tether(table(rule={**PPO, "epsilon_low": 0.3, "epsilon_high": 0.3})),
        theirs=Verl("vanilla", {"clip_ratio": 0.3, "clip_ratio_c": OFF}),
        difference=Difference(
            "verl's clip_ratio does nothing: clip_ratio_low and clip_ratio_high are 0.2 unless set, and they decide.",
            Tether(table(rule=PPO)),
        ),
    ),
    Case(method="dual clip", ours=Tether(table(rule=DUAL)), theirs=Verl("vanilla", {"clip_ratio_c": 3.0})),
    Case(method="dual clip", ours=Tether(table(rule=DUAL)), theirs=TRL({"loss_type": "bnpo", "delta": 3.0})),
    Case(
        method="PPO, moved by 23 nats",
        batch=beyond_guard,
        ours=Tether(table(rule=PPO)),
        theirs=Verl("vanilla", {"clip_ratio_c": OFF}),
    ),
    Case(
        method="PPO, moved by 23 nats",
        batch=beyond_guard,
        ours=Tether(table(rule=PPO)),
        theirs=TRL({"loss_type": "bnpo"}),
        difference=Difference(
            "TRL has no guard on the log-ratio; tether holds it within 20 nats and gives no gradient beyond.",
            Clip("token", "token-mean", guard=None),
        ),
    ),
)

GSPO = table(rule=PPO, level="sequence", aggregation="seq-mean-token-mean")
SEQUENCE = (
    Case(
        method="GSPO",
        ours=Tether(GSPO),
        theirs=Verl("gspo", {"loss_agg_mode": "seq-mean-token-mean"}),
    ),
    Case(
        method="GSPO",
        ours=Tether(GSPO),
        theirs=TRL({"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    ),
    Case(
        method="GSPO, the paper's radii",
        ours=Tether({**GSPO, "rule": {"name": "ppo", "epsilon_low": 3e-4, "epsilon_high": 4e-4}}),
        theirs=Verl("gspo", {"loss_agg_mode": "seq-mean-token-mean", "clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4}),
    ),
    Case(
        method="LUSPO",
        ours=Tether({**GSPO, "aggregation": {"name": "seq-mean-token-sum"}}),
        theirs=TRL({"loss_type": "luspo", "importance_sampling_level": "sequence"}),
    ),
    Case(
        method="GSPO, responses moved by 12 nats a token",
        batch=upwards,
        ours=Tether(GSPO),
        theirs=Verl("gspo", {"loss_agg_mode": "seq-mean-token-mean"}),
        difference=Difference(
            "verl holds GSPO's log-ratio at 10 nats from above and gives no gradient beyond; tether at 20, from both "
            "sides, as everywhere.",
            Clip("sequence", "seq-mean-token-mean", guard=(-float("inf"), 10.0)),
        ),
    ),
    Case(
        method="GSPO, responses moved by 12 nats a token",
        batch=upwards,
        ours=Tether(GSPO),
        theirs=TRL({"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    ),
)


CASES = (*TOKEN, *SEQUENCE)
