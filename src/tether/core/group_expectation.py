"""How probable a group's answers are under the behavior policy: the denominator that GEPO shares among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from tether.core.statistics import Sofar
from tether.core.tokens import TokenBatch

NATS = float(1 << 32)
"""Log-probabilities are summed as whole numbers of 2^-32 nats: exact in any order, up to 2^31 nats."""
SHARES = float(1 << 40)
"""Probabilities, relative to the group's largest, as whole numbers of 2^-40."""
NOBODY = torch.iinfo(torch.int64).max
"""In the place of a group where there is no response."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExpectation:
    """``log E`` of every group, ``E = sum_j mu(y_j)^2 / sum_j mu(y_j)`` over its responses (GEPO, arXiv:2508.17850).

    The answer is a table ``[2, N]`` in float64: ids of groups, not falling, and the ``log E`` of each; N is the number
    of tokens, so that nothing waits for the device, and a group stands in it once for each of its responses. Responses
    must be whole, those of a group may lie in any micro-batch or rank.

    >>> from dataclasses import replace
    >>> from math import log
    >>> from tether.core.examples import tokens_of
    >>> from tether.core.statistics import measure
    >>> tokens, logp = tokens_of(log_ratio=[0.0, 0.0], advantage=[1.0, -1.0])
    >>> one = torch.zeros(2, dtype=torch.int64)
    >>> tokens = replace(tokens, logp_behavior=torch.tensor([log(0.1), log(0.3)]), group=one)
    >>> measure([(logp, tokens)], [GroupExpectation()])[GroupExpectation()][1].exp()
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """

    by_length: bool = False
    """Whether ``log mu`` is the mean over a response's tokens, not their sum."""

    rounds: ClassVar[int] = 1

    def local(self, d: Float[Tensor, "T"], tokens: TokenBatch, sofar: Sofar) -> Int64[Tensor, "T 3"]:
        """Group, ``log mu`` and length of each response, in as many rows as there are tokens."""
        sequence = tokens.sequence.long()
        groups = torch.where(tokens.trainable, tokens.group.long(), NOBODY)
        logp = torch.where(tokens.trainable, tokens.logp_behavior.double() * NATS, 0.0).round().long()
        nothing = torch.zeros_like(sequence)
        return torch.stack(
            [
                torch.full_like(sequence, NOBODY).scatter_reduce(0, sequence, groups, "amin"),
                nothing.scatter_add(0, sequence, logp),
                nothing.scatter_add(0, sequence, tokens.trainable.long()),
            ],
            dim=1,
        )

    def reduce(self, parts: Sequence[Tensor]) -> Int64[Tensor, "N 3"]:
        """Rows of all."""
        return torch.cat(list(parts))

    def finish(self, reduced: Sofar) -> Float64[Tensor, "2 N"]:
        """Sort by group, then the two sums of each, relative to its largest."""
        group, order = reduced[0][:, 0].sort()
        logp, length = reduced[0].index_select(0, order)[:, 1:].double().unbind(1)
        logp = logp / NATS / (length.clamp(min=1.0) if self.by_length else 1.0)
        is_first = torch.ones_like(group, dtype=torch.bool)
        is_first[1:] = group[1:] != group[:-1]
        place = is_first.long().cumsum(0) - 1
        largest = torch.full_like(logp, -torch.inf).scatter_reduce(0, place, logp, "amax").index_select(0, place)
        once, twice = (_sum_by((factor * (logp - largest)).exp(), place) for factor in (1.0, 2.0))
        return torch.stack([group.double(), largest + twice.log() - once.log()])


def _sum_by(x: Float64[Tensor, "N"], place: Int64[Tensor, "N"]) -> Float64[Tensor, "N"]:
    """Sum of ``x`` over the rows of one place, at each of them."""
    whole = (x * SHARES).round().long()
    return torch.zeros_like(whole).scatter_add(0, place, whole).index_select(0, place).double() / SHARES
