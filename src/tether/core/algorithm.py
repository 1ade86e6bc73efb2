"""An algorithm: independent choices, checked to multiply to what they claim."""

from __future__ import annotations

from dataclasses import dataclass, field

from tether.core.advantage import Advantage
from tether.core.aggregation import Aggregation
from tether.core.composition import check_composition
from tether.core.kl import KLPenalty
from tether.core.proximal import Proximal
from tether.core.ratio import Level
from tether.core.replay import Replay
from tether.core.rule import Correction, Rule, Traits
from tether.core.statistics import Scope
from tether.core.step_size import StepSize
from tether.errors import ConfigError
from tether.registry import (
    ADVANTAGES,
    AGGREGATIONS,
    CORRECTIONS,
    KL_PENALTIES,
    PROXIMALS,
    REPLAYS,
    RULES,
    STEP_SIZES,
)

MOST_ENTROPY = 1e6
"""Largest coefficient of the entropy bonus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """What is maximized, as independent choices; raises ``ConfigError`` if they do not multiply to ``pi/behavior``."""

    proximal: Proximal = field(metadata={"registry": PROXIMALS})
    """The denominator of the clipped ratio."""
    level: Level
    """``token``: one ratio a token. ``sequence``: one a response (GSPO, token form). ``product``: one a response, the
    product of its tokens'."""
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
    step_size: StepSize | None = field(default=None, metadata={"registry": STEP_SIZES})
    """What scales the learning rate of a single update."""
    replay: tuple[Replay, ...] = field(default=(), metadata={"registry": REPLAYS})
    """What the trainer's forward pass takes over from the engine's."""

    def __post_init__(self) -> None:
        for name in ("proximal", "rule", "aggregation", "advantage", "kl", "step_size"):
            if isinstance(got := getattr(self, name), str):
                raise ConfigError(f"Algorithm.{name} takes an object, not the name {got!r}; names belong in recipes")
        if not 0 <= self.entropy <= MOST_ENTROPY:
            raise ConfigError(f"algorithm.entropy must lie in 0 .. {MOST_ENTROPY:g} (0 for none); got {self.entropy}")
        if len({type(replay) for replay in self.replay}) < len(self.replay):
            raise ConfigError("algorithm.replay names each replay once; got one of them twice: keep one")
        check_composition(self.proximal, self.level, self.rule, self.corrections, self.measure)

    @property
    def traits(self) -> tuple[Traits, ...]:
        """Of the rule and of the corrections, in order."""
        return (self.rule.traits, *(correction.traits for correction in self.corrections))
