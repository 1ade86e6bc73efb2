"""All that is compared. A new rule is one more entry in a file of ``parity/methods``."""

from __future__ import annotations

from parity.case import Case
from parity.methods import aggregation, clip, correction, divergence, kl, presets, reinforce, smooth

FAMILIES: dict[str, tuple[Case, ...]] = {
    "Presets": presets.CASES,
    "Clip, per token": clip.TOKEN,
    "Clip, per response": clip.SEQUENCE,
    "Aggregation": aggregation.CASES,
    "KL penalty": kl.CASES,
    "Weights": correction.WEIGHTS,
    "Masks": correction.MASKS,
    "DPPO": divergence.CASES,
    "Losses in log pi": reinforce.CASES,
    "Smooth gates and means": smooth.CASES,
}
CASES = tuple(case for family in FAMILIES.values() for case in family)
