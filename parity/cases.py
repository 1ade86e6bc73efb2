"""All that is compared. A new rule is one more entry in a file of ``parity/methods``."""

from __future__ import annotations

from parity.case import Case
from parity.methods import aggregation, clip, correction, kl

FAMILIES: dict[str, tuple[Case, ...]] = {
    "Clip, per token": clip.TOKEN,
    "Clip, per response": clip.SEQUENCE,
    "Aggregation": aggregation.CASES,
    "KL penalty": kl.CASES,
    "Corrections": correction.CASES,
}
CASES = tuple(case for family in FAMILIES.values() for case in family)
