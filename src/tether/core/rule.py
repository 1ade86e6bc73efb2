"""What a rule, a correction and a kernel are: the seams that plug-ins fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from tether.core.ratio import Edge, Level, Ratio
from tether.core.statistics import Statistic, Statistics
from tether.core.tokens import TokenBatch, only


class PolicyTokens(NamedTuple):
    """The only differentiable things: the sampled tokens under the weights being updated."""

    logp: Float[Tensor, "T"]
    """Log-probability in nats, at the sampling temperature."""
    entropy: Float[Tensor, "T"] | None = None
    """Entropy of the full distribution at that temperature, or over the kept ids, where asked for."""
    top_k: Float[Tensor, "T K"] | None = None
    """Log-probabilities of the ids of ``TokenBatch.top_k_behavior``, ``-inf`` in the same places."""
    lost_mass: Float[Tensor, "T"] | None = None
    """Probability of what a truncation that is not replayed cuts away; without gradient, for the log."""

    def quiet(self, trainable: Bool[Tensor, "T"]) -> PolicyTokens:
        """In float32, with 0 in the place of untrainable tokens, whatever they hold."""
        return PolicyTokens(*(None if x is None else only(trainable, x.float()) for x in self))  # type: ignore[arg-type]

    def detached(self) -> PolicyTokens:
        """The same numbers without gradient."""
        return PolicyTokens(*(None if x is None else x.detach() for x in self))  # type: ignore[arg-type]


class Mark(NamedTuple):
    """A per-token reading; the log shows its average."""

    value: Float[Tensor, "T"] | Bool[Tensor, "T"]
    """A number, or yes and no: then the average is a share."""
    among: Bool[Tensor, "T"]
    """The tokens that it is averaged over."""


class Surrogate(NamedTuple):
    """A rule's answer, token by token."""

    objective: Float[Tensor, "T"]
    """What to maximize; differentiable in the current log-probabilities and nothing else."""
    active: Bool[Tensor, "T"]
    """Tokens that the rule leaves a gradient."""
    marks: Mapping[str, Mark] = {}
    """Readings by metric name."""


class Weight(NamedTuple):
    """A correction's answer: a factor of the objective, detached."""

    value: Float[Tensor, "T"]
    """Finite and >= 0."""


@runtime_checkable
class Kernel(Protocol):
    """How far a radius contracts: ``psi(0) = 1``, ``psi(q) = 1/2``, not increasing, in (0, 1], or 0 for a step."""

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, "*Q"]) -> Float[Tensor, "*T"]:
        """Contraction of the side on which a token has moved by ``u >= 0``; ``q > 0``, or infinite: then 1."""
        ...


@runtime_checkable
class Scale(Protocol):
    """What a distance is measured against: the q of SAT. Frozen; options are fields; no state."""

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics of the scope, over the log-ratio that the rule measures."""
        ...

    @property
    def inputs(self) -> tuple[str, ...]:
        """Optional fields of ``TokenBatch`` without which it cannot work."""
        ...

    @property
    def is_per_token(self) -> bool:
        """True if q is one a token."""
        ...

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, "*Q"]:
        """q, one for all ``[]`` or one a token ``[T]``; >= 0, detached; 0 where nothing is to be gated."""
        ...

    def readings(self, stats: Statistics) -> dict[str, float]:
        """Scope-wide numbers for the log: ``sat/q`` where q is one number, ``sat/q/<bin>`` where it is several."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a factor of the loss declares about itself: what it reads, what it needs, what it may cut."""

    reads: Edge = "clipped"
    """The edge whose log-ratio it is handed."""
    level: Level | None = None
    """At which level; ``None``: the recipe's. A rule that has one works at that level alone."""
    needs: tuple[Statistic, ...] = ()
    """Statistics of the scope."""
    measures: Edge | None = None
    """The edge that its statistics are taken over; ``None``: the one it reads."""
    inputs: tuple[str, ...] = ()
    """Optional fields of ``TokenBatch`` and ``PolicyTokens`` without which it cannot work."""
    keeps_pull_back: bool = True
    """True if a token that moves back towards the data never loses its gradient."""
    is_mask: bool = False
    """Of a correction: true if the value is 0 or 1, so that it does not change what the ratio measures."""
    is_one_sided: bool = False
    """Of a mask: true if it drops tokens of one sign of the advantage alone: it may stand beside a mask of both."""
    mixes_tokens: bool = False
    """Of a rule at level ``token``: true if a token's objective depends on the other tokens of its response."""
    is_literal: bool = False
    """True if a paper publishes its product with the rule as it is, although it is not ``pi/behavior``."""

    def ratio(self, recipe: Level) -> Ratio:
        """Which log-ratio it is handed, in a recipe of that level."""
        return Ratio(self.reads, self.level or recipe)

    def measured(self, recipe: Level) -> Ratio:
        """Which log-ratio its statistics are taken over."""
        return Ratio(self.measures or self.reads, self.level or recipe)


@runtime_checkable
class Rule(Protocol):
    """A surrogate: keeps an off-policy update close to the data. Frozen; options are fields; no state."""

    @property
    def traits(self) -> Traits:
        """What it reads, needs and cuts."""
        ...

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """The surrogate of every token; ``log_ratio`` is at the recipe's level, guarded, made once by core."""
        ...


@runtime_checkable
class Readable(Protocol):
    """A rule that also has scope-wide numbers for the log."""

    def readings(self, stats: Statistics) -> dict[str, float]:
        """By metric name (this may wait for the device)."""
        ...


@runtime_checkable
class Correction(Protocol):
    """A detached weight or 0/1 mask on the objective. Frozen; options are fields; no state."""

    @property
    def traits(self) -> Traits:
        """What it reads, needs and cuts."""
        ...

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """The factor of every token; everything it is handed is detached."""
        ...
