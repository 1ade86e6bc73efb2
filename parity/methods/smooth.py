"""SAPO's gate and GMPO's geometric mean."""

from __future__ import annotations

from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from parity.case import Case, Difference
from parity.sides import Tether, table
from parity.trl_side import TRL
from parity.verl_side import Verl

SAPO = table(rule={"name": "sapo"}, aggregation="seq-mean-token-mean")
GMPO = table(rule={"name": "gmpo"}, aggregation="seq-mean-token-mean")

CASES = (
    Case(method="SAPO", ours=Tether(SAPO), theirs=Verl("sapo", {"loss_agg_mode": "seq-mean-token-mean"})),
    Case(method="SAPO", ours=Tether(SAPO), theirs=TRL({"loss_type": "sapo"})),
    Case(
        method="SAPO, token-mean",
        ours=Tether({**SAPO, "aggregation": {"name": "token-mean"}}),
        theirs=Verl("sapo", {"loss_agg_mode": "token-mean"}),
        difference=Difference(
            "verl's SAPO takes seq-mean-token-mean, whatever loss_agg_mode says.",
            Tether(SAPO),
        ),
    ),
    Case(method="GMPO", ours=Tether(GMPO), theirs=Verl("geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4})),
    Case(
        method="GMPO, verl's defaults",
        ours=Tether(GMPO),
        theirs=Verl("geo_mean"),
        difference=Difference(
            "verl takes GMPO's bounds, in nats, from clip_ratio_low and clip_ratio_high, which are 0.2 unless set; the "
            "paper's are 0.4.",
            Tether({**GMPO, "rule": {"name": "gmpo", "log_clip": 0.2}}),
        ),
    ),
    Case(method="GMPO", ours=Tether(GMPO), theirs=TRL({}, GMPOTrainer, GMPOConfig)),
)
