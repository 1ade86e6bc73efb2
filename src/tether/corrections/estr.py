"""ESTR: a mask whose width grows with the entropy of the distribution sampled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float
from torch import Tensor

from tether.core.proximal import provided
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS

MOST_THRESHOLD = 1e9
"""Largest threshold."""


def score(log_ratio: Float[Tensor, "T"], entropy: Float[Tensor, "T"], epsilon: float) -> Float[Tensor, "T"]:
    """``S = d^2 / (H + epsilon)``: how far a token moved, against how far one of its entropy is expected to.

    The expectation of d^2 grows with H, in nats; H below 0, a rounding error, counts as 0. A threshold for ``estr`` is
    a high quantile of S on data without staleness.

    >>> import torch
    >>> [round(x, 4) for x in score(torch.tensor([0.5, 0.5]), torch.tensor([0.01, 1.0]), 0.01).tolist()]
    [12.5, 0.2475]
    """
    return log_ratio.square() / (entropy.clamp(min=0.0) + epsilon)


@CORRECTIONS.register("estr")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ESTR:
    """Entropy-scaled trust region: keep a token iff ``d^2 / (H + epsilon) <= threshold`` (arXiv:2607.22186).

    ``d = log pi / behavior``, H the full entropy of the distribution sampled from, in nats. So ``|d|`` may reach
    ``sqrt(threshold (H + epsilon))``: little where the policy was sure, much where it was not. A 0/1 mask, blind to the
    advantage; dropped tokens still count in the denominator. ``[T] -> [T]``.

    A token at d = .5 is dropped at entropy .01 and kept at entropy 1:

    >>> import torch
    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, logp = tokens_of(log_ratio=[0.5, 0.5], advantage=[1.0, 1.0])
    >>> tokens = replace(tokens, entropy_behavior=torch.tensor([0.01, 1.0]))
    >>> ESTR(threshold=1.0)(logp.detach(), PolicyTokens(logp), tokens, Statistics({})).value
    tensor([0., 1.])
    """

    threshold: float | None = None
    """Largest score of a kept token; must be given. Good: what drops 1 to 2 % of the tokens without staleness."""
    epsilon: float = 0.01
    """Added to the entropy, in nats, so that a sure token may move a little."""

    traits: ClassVar[Traits] = Traits(
        reads="total", level="token", inputs=("entropy_behavior",), keeps_pull_back=False, is_mask=True
    )

    def __post_init__(self) -> None:
        if self.threshold is None:
            raise ValueError(
                "threshold of estr must be given, since the paper's tau is unpublished; got none: "
                "`tether probe MODEL` prints a value for it"
            )
        if not 0.0 < self.threshold <= MOST_THRESHOLD:
            raise ValueError(
                f"threshold of estr must lie in (0, {MOST_THRESHOLD:g}] (`tether probe MODEL` prints a value for it); "
                f"got {self.threshold}"
            )
        if not 0.0 < self.epsilon <= 1.0:
            raise ValueError(f"epsilon of estr must lie in (0, 1] (0.01 is usual); got {self.epsilon}")

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Drop tokens that moved further than their entropy allows."""
        assert self.threshold is not None, "refused when it was made"
        entropy = provided(tokens.entropy_behavior, "entropy_behavior")
        keep = score(log_ratio.detach(), entropy, self.epsilon) <= self.threshold
        return Weight(keep.to(log_ratio.dtype))
