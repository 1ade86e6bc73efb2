"""What a rule, a correction and a kernel are: the seams that plug-ins fill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float
from torch import Tensor

from tether.core.ratio import Edge
from tether.core.statistics import Statistic, Statistics
from tether.core.tokens import TokenBatch


class PolicyTokens(NamedTuple):
    """The only differentiable things: the sampled tokens under the weights being updated."""

    logp: Float[Tensor, "T"]
    """Log-probability in nats, at the sampling temperature."""
    entropy: Float[Tensor, "T"] | None = None
    """Entropy of the full distribution at that temperature, where asked for."""


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
    """How far a radius contracts: ``psi(0) = 1``, ``psi(q) = 1/2``, not increasing, in (0, 1]."""

    def __call__(self, u: Float[Tensor, "*T"], q: Float[Tensor, ""]) -> Float[Tensor, "*T"]:
        """Contraction of the side on which a token has moved by ``u >= 0``; ``q > 0``, or infinite: then 1."""
        ...


@runtime_checkable
class Rule(Protocol):
    """A surrogate: keeps an off-policy update close to the data. Frozen; options are fields; no state."""

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics of the scope, over the log-ratio of the edge it reads."""
        ...

    @property
    def reads(self) -> Edge:
        """The edge whose log-ratio it is handed."""
        ...

    @property
    def keeps_pull_back(self) -> bool:
        """True if a token that moves back towards the data never loses its gradient."""
        ...

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """The surrogate of every token; ``log_ratio`` is at the recipe's level, guarded, made once by core."""
        ...

    def readings(self, stats: Statistics) -> dict[str, float]:
        """Scope-wide numbers for the log, by metric name (this may wait for the device)."""
        ...


@runtime_checkable
class Correction(Protocol):
    """A detached weight or 0/1 mask on the objective. Frozen; options are fields; no state."""

    @property
    def needs(self) -> tuple[Statistic, ...]:
        """Statistics of the scope, over the log-ratio of the edge it reads."""
        ...

    @property
    def reads(self) -> Edge:
        """The edge whose log-ratio it is handed, detached."""
        ...

    @property
    def is_mask(self) -> bool:
        """True if the value is 0 or 1, so that it does not change what the ratio measures."""
        ...

    @property
    def keeps_pull_back(self) -> bool:
        """True if a token that moves back towards the data never loses its gradient."""
        ...

    def __call__(self, log_ratio: Float[Tensor, "T"], tokens: TokenBatch, stats: Statistics) -> Weight:
        """The factor of every token."""
        ...
