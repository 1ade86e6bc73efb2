"""From token losses to one number: each aggregation is a weight a token, fixed by counts of the whole step.

The loss is ``sum_t weight_t * loss_t`` over trainable tokens. Counts are taken before any mask and over all
micro-batches and ranks, so shares of micro-batches add up to the loss of the step however it was split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from tether.core.tokens import TokenBatch, response_length
from tether.registry import AGGREGATIONS

MOST_HORIZON = 10**9
"""Longest constant length, in tokens."""


class Denominator(NamedTuple):
    """Counts of a whole step, before any mask."""

    num_tokens: int
    """Trainable tokens."""
    num_sequences: int
    """Responses with at least one trainable token."""


@runtime_checkable
class Aggregation(Protocol):
    """How much each token's loss counts."""

    def __call__(self, tokens: TokenBatch, denominator: Denominator) -> Float[Tensor, "T"]:
        """Weight of every token; those of untrainable tokens are never used."""
        ...


def _every(tokens: TokenBatch, weight: float) -> Float[Tensor, "T"]:
    return torch.full((len(tokens),), weight, device=tokens.trainable.device)


@AGGREGATIONS.register("token-mean")
@final
@dataclass(frozen=True, slots=True)
class TokenMean:
    """``sum x / n``: every token of the step counts the same (DAPO, arXiv:2503.14476).

    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0, 0], advantage=[1, 1])
    >>> TokenMean()(tokens, Denominator(num_tokens=4, num_sequences=2))
    tensor([0.2500, 0.2500])
    """

    def __call__(self, tokens: TokenBatch, denominator: Denominator) -> Float[Tensor, "T"]:
        """1 / n."""
        return _every(tokens, 1.0 / max(denominator.num_tokens, 1))


@AGGREGATIONS.register("token-sum")
@final
@dataclass(frozen=True, slots=True)
class TokenSum:
    """``sum x``: the gradient grows with the step's length.

    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0, 0], advantage=[1, 1])
    >>> TokenSum()(tokens, Denominator(num_tokens=4, num_sequences=2))
    tensor([1., 1.])
    """

    def __call__(self, tokens: TokenBatch, denominator: Denominator) -> Float[Tensor, "T"]:
        """1."""
        return _every(tokens, 1.0)


@AGGREGATIONS.register("seq-mean-token-sum")
@final
@dataclass(frozen=True, slots=True)
class SeqMeanTokenSum:
    """``(1/S) sum_b sum_t x``: responses count by their length.

    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0, 0], advantage=[1, 1])
    >>> SeqMeanTokenSum()(tokens, Denominator(num_tokens=4, num_sequences=2))
    tensor([0.5000, 0.5000])
    """

    def __call__(self, tokens: TokenBatch, denominator: Denominator) -> Float[Tensor, "T"]:
        """1 / S."""
        return _every(tokens, 1.0 / max(denominator.num_sequences, 1))


@AGGREGATIONS.register("seq-mean-token-mean")
@final
@dataclass(frozen=True, slots=True)
class SeqMeanTokenMean:
    """``(1/S) sum_b mean_t x``: every response counts the same, whatever its length (GRPO, arXiv:2402.03300).

    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0, 0, 0], advantage=[1, 1, 1], sequence=[0, 0, 1])
    >>> SeqMeanTokenMean()(tokens, Denominator(num_tokens=3, num_sequences=2))
    tensor([0.2500, 0.2500, 0.5000])
    """

    def __call__(self, tokens: TokenBatch, denominator: Denominator) -> Float[Tensor, "T"]:
        """1 / (S T_b)."""
        return response_length(tokens).mul_(max(denominator.num_sequences, 1)).reciprocal_()


@AGGREGATIONS.register("seq-mean-token-sum-norm")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SeqMeanTokenSumNorm:
    """``(1/S) sum_b (sum_t x) / horizon``: one constant length for all, so long answers are not favored (Dr.GRPO).

    arXiv:2503.20783. The horizon is a constant of the run, never the padded width of a batch.

    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0, 0], advantage=[1, 1])
    >>> SeqMeanTokenSumNorm(horizon=8)(tokens, Denominator(num_tokens=4, num_sequences=2))
    tensor([0.0625, 0.0625])
    """

    horizon: int = 0
    """Constant length L, in tokens; a recipe that leaves it out gets the engine's ``max_tokens``."""

    def __post_init__(self) -> None:
        if self.horizon < 0:
            raise ValueError(f"horizon of seq-mean-token-sum-norm must be a length >= 1; got {self.horizon}")
        if self.horizon > MOST_HORIZON:
            raise ValueError(f"horizon of seq-mean-token-sum-norm must be at most {MOST_HORIZON}; got {self.horizon}")

    def __call__(self, tokens: TokenBatch, denominator: Denominator) -> Float[Tensor, "T"]:
        """1 / (S L)."""
        if self.horizon < 1:
            raise ValueError(f"horizon of seq-mean-token-sum-norm must be a length >= 1; got {self.horizon}")
        return _every(tokens, 1.0 / (max(denominator.num_sequences, 1) * self.horizon))
