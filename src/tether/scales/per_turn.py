"""One q a turn of the rollout (ours, not in the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.binned_quantile import MOST_EDGES, BinnedQuantile
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import SCALES


@SCALES.register("per-turn")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class PerTurn:
    """The quantile of |d| among the tokens of the same turn (ours, not in the paper). ``[T] -> [T]``.

    Mismatch grows along a rollout with tool calls, so one quantile for all gates late turns almost alone; with one a
    turn every turn has its own tail. The first ``most_turns - 1`` turns have a q each, later ones share the last. A
    turn with fewer than ``1 / (1 - level)`` tokens in the scope is never gated. The paper's authors name turns as
    future work (arXiv:2607.18722); the form is ours.

    >>> import dataclasses, torch
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.1, -0.2, 0.3], advantage=[1.0, 1.0, 1.0])
    >>> tokens = dataclasses.replace(tokens, turn=torch.tensor([0, 1, 5]))
    >>> scale = PerTurn(most_turns=2)
    >>> scale(tokens, Statistics({scale.needs[0]: torch.tensor([0.1, 0.3])}))
    tensor([0.1000, 0.3000, 0.3000])
    """

    level: float = 0.9
    """Share of a turn's tokens that the gate leaves alone."""
    most_turns: int = 8
    """How many q there are."""

    inputs: ClassVar[tuple[str, ...]] = ("turn",)
    is_per_token: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 1 <= self.most_turns <= MOST_EDGES + 1:
            raise ValueError(
                f"most_turns of the per-turn scale must lie in 1 .. {MOST_EDGES + 1} (8 is usual); "
                f"got {self.most_turns}"
            )
        BinnedQuantile(self.level, "turn", edges=())  # refuses a level outside (0, 1]

    @property
    def needs(self) -> tuple[BinnedQuantile]:
        """A quantile of |d| for every turn."""
        return (BinnedQuantile(self.level, "turn", edges=tuple(range(1, self.most_turns))),)

    def __call__(self, tokens: TokenBatch, stats: Statistics) -> Float[Tensor, "T"]:
        """The q of every token's turn."""
        (quantile,) = self.needs
        return stats[quantile].detach().index_select(0, quantile.bins(tokens))

    def readings(self, stats: Statistics) -> dict[str, float]:
        """q of every turn: ``sat/q/0`` and so on."""
        (quantile,) = self.needs
        return {f"sat/q/{label}": q for label, q in zip(quantile.labels, stats[quantile].tolist(), strict=True)}
