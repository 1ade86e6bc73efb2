"""One q a range of staleness (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.binned_quantile import BinnedQuantile
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import SCALES


@SCALES.register("per-staleness")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PerStaleness:
    """The quantile of |d| among the tokens of about the same staleness (ours, not in the paper). ``[T] -> [T]``.

    One quantile for all gates the stalest tokens for being stale. With one a bin, fresh tokens with a large mismatch
    are gated too, and stale ones are gated only if they stand out among the stale. Bins are fixed, so that a run's
    curves go on; one with fewer than ``1 / (1 - level)`` tokens in the scope is never gated.

    >>> import dataclasses, torch
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.1, -0.2, 0.3], advantage=[1.0, 1.0, 1.0])
    >>> tokens = dataclasses.replace(tokens, staleness=torch.tensor([0, 3, 9]))
    >>> scale = PerStaleness(edges=(1, 8))
    >>> scale(tokens, Statistics({scale.needs[0]: torch.tensor([0.1, 0.2, 0.3])}))
    tensor([0.1000, 0.2000, 0.3000])
    """

    level: float = 0.9
    """Share of a bin's tokens that the gate leaves alone."""
    edges: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Staleness, in updates, at which a new bin begins, ascending; the first begins at 0, the last has no end."""

    inputs: ClassVar[tuple[str, ...]] = ()
    is_per_token: ClassVar[bool] = True

    def __post_init__(self) -> None:
        BinnedQuantile(
            self.level, "staleness", self.edges
        )  # refuses a level outside (0, 1], and edges that are no bins

    @property
    def needs(self) -> tuple[BinnedQuantile]:
        """A quantile of |d| for every bin."""
        return (BinnedQuantile(self.level, "staleness", self.edges),)

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, "T"]:
        """The q of every token's bin."""
        (quantile,) = self.needs
        return stats[quantile].detach().index_select(0, quantile.bins(tokens))

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q of every bin: ``sat/q/0``, ``sat/q/2-3`` and so on."""
        (quantile,) = self.needs
        return {f"sat/q/{label}": q for label, q in zip(quantile.labels, stats[quantile].tolist(), strict=True)}
