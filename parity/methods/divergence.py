"""DPPO: a mask by the distance of the sampled token's probabilities."""

from __future__ import annotations

from parity.case import Case, Difference
from parity.sides import Tether, table
from parity.verl_side import Verl

TV = {"name": "dppo", "divergence": "tv", "delta_low": 0.15, "delta_high": 0.15}
KL = {**TV, "divergence": "kl", "delta_low": 0.05, "delta_high": 0.05}


def _verl(name: str, delta: float, **more: float) -> Verl:
    return Verl(name, {"clip_ratio_low": delta, "clip_ratio_high": delta, **more})


CASES = (
    Case(
        method="DPPO, total variation",
        ours=Tether(table(rule=TV)),
        theirs=_verl("dppo_tv", 0.15, clip_ratio_c=20.0),
    ),
    Case(method="DPPO, Bernoulli KL", ours=Tether(table(rule=KL)), theirs=_verl("dppo_kl", 0.05, clip_ratio_c=20.0)),
    *(
        Case(
            method=f"{method}, verl's defaults",
            ours=Tether(table(rule=rule)),
            theirs=Verl(name),
            difference=Difference(
                "verl's thresholds are clip_ratio_low and clip_ratio_high, 0.2 unless set, and it truncates the ratio "
                "at clip_ratio_c, which is 3 unless set: the 20 in its code is never reached.",
                Tether(table(rule={**rule, "delta_low": 0.2, "delta_high": 0.2, "cap": 3.0})),
            ),
        )
        for method, name, rule in (("DPPO, total variation", "dppo_tv", TV), ("DPPO, Bernoulli KL", "dppo_kl", KL))
    ),
)
