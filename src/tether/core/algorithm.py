"""An algorithm: five independent choices, checked to multiply to what they claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from tether.core.advantage import Advantage
from tether.core.aggregation import Aggregation
from tether.core.kl import KLPenalty
from tether.core.ratio import Edge, Level
from tether.core.rule import Correction, Rule
from tether.core.statistics import Scope
from tether.errors import ConfigError
from tether.registry import ADVANTAGES, AGGREGATIONS, CORRECTIONS, KL_PENALTIES, PROXIMALS, RULES

StandsFor = Literal["behavior", "anchor"]
"""Which policy a proximal is, exactly."""
MOST_ENTROPY = 1e6
"""Largest coefficient of the entropy bonus."""


@runtime_checkable
class Proximal(Protocol):
    """What the ratio is clipped against."""

    @property
    def stands_for(self) -> StandsFor:
        """The policy it is, for the check of composition."""
        ...

    def __call__(self, logp_anchor: Float[Tensor, "T"], logp_behavior: Float[Tensor, "T"]) -> Float[Tensor, "T"]:
        """``logp_proximal`` of every token."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What is maximized, as independent choices; raises ``ConfigError`` if they do not multiply to ``pi/behavior``."""

    proximal: Proximal = field(metadata={"registry": PROXIMALS})
    """The denominator of the clipped ratio."""
    level: Level
    """``token``: one ratio a token. ``sequence``: one a response (GSPO, token form)."""
    rule: Rule = field(metadata={"registry": RULES})
    """Which tokens keep a gradient."""
    corrections: tuple[Correction, ...] = field(default=(), metadata={"registry": CORRECTIONS})
    """Detached weights and masks, multiplied in."""
    aggregation: Aggregation = field(metadata={"registry": AGGREGATIONS})
    """How token losses become one number."""
    advantage: Advantage = field(metadata={"registry": ADVANTAGES})
    """Credit within a group."""
    measure: Scope = "step"
    """Over which tokens whole-batch statistics run."""
    kl: KLPenalty | None = field(default=None, metadata={"registry": KL_PENALTIES})
    """Penalty for leaving the frozen reference."""
    entropy: float = 0.0
    """Coefficient of the entropy bonus."""

    def __post_init__(self) -> None:
        for name in ("proximal", "rule", "aggregation", "advantage", "kl"):
            if isinstance(got := getattr(self, name), str):
                raise ConfigError(f"Algorithm.{name} takes an object, not the name {got!r}; names belong in recipes")
        if not 0 <= self.entropy <= MOST_ENTROPY:
            raise ConfigError(f"algorithm.entropy must lie in 0 .. {MOST_ENTROPY:g} (0 for none); got {self.entropy}")
        check_composition(self)


def check_composition(algorithm: Algorithm) -> None:
    """Refuse a recipe whose unclipped, untruncated coefficient of ``A grad logp`` is not ``pi / behavior``.

    Each factor contributes the edge it reads; in logs the edges are summed, with the proximal replaced by the policy it
    stands for. Masks are 0 or 1 and contribute nothing.
    """
    stands_for = algorithm.proximal.stands_for
    weights = [c for c in algorithm.corrections if not c.is_mask]
    total: Counter[str] = Counter()
    for edge in [algorithm.rule.reads, *(c.reads for c in weights)]:
        above, below = _ends(edge, stands_for)
        total[above] += 1
        total[below] -= 1
    left = {policy: power for policy, power in total.items() if power}
    proximal, names = PROXIMALS.name_of(algorithm.proximal), ", ".join(CORRECTIONS.name_of(c) for c in weights)
    shown = " * ".join(f"{policy}^{power}" for policy, power in sorted(left.items(), key=lambda item: -item[1])) or "1"
    if stands_for == "behavior" and weights:
        raise ConfigError(
            f"proximal {proximal!r} already gives the ratio pi/behavior, so the weight {names} would be a second "
            "correction of the same thing; use proximal = 'anchor' with it, or leave it out"
        )
    if left == {"pi": 1, "behavior": -1}:
        return
    way_out = (
        f"the weights {names} correct the same thing more than once: keep one"
        if weights
        else f"with proximal {proximal!r} the ratio cannot see how stale the data are: add a correction that reads the "
        "edge 'weight' (such as tis), or use proximal = 'rollout'"
    )
    raise ConfigError(f"this recipe weights the gradient by {shown} instead of pi/behavior; {way_out}")


def _ends(edge: Edge, stands_for: StandsFor) -> tuple[str, str]:
    """Numerator and denominator of an edge."""
    return {"total": ("pi", "behavior"), "clipped": ("pi", stands_for), "weight": (stands_for, "behavior")}[edge]
