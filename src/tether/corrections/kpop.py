"""KPop: a mask over the Bernoulli KL of trainer and engine, both ways."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from tether.core.divergences import bernoulli_kl_either_way
from tether.core.ratio import ENDS, logp_of
from tether.core.rule import PolicyTokens, Traits, Weight
from tether.core.statistics import Statistics
from tether.core.tokens import TokenBatch
from tether.registry import CORRECTIONS

MOST_DIVERGENCE = 1e9
"""Largest bound, in nats: as good as none, since the floors of the divergence end it below 50."""


@CORRECTIONS.register("kpop")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class KPop:
    """Keep a token iff ``D(p || q) <= phi`` and ``D(q || p) <= phi``, p the trainer's and q the engine's probability.

    ``D(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`` of the sampled token, in nats (KPop, note of the Ring
    team, 2026, ringtech.notion.site/kpop). Unlike a band of ratios it lets rare tokens move by large factors and
    watches probable ones. The note leaves open which p is the trainer's; that is ``edge``. A 0/1 mask, blind to the
    advantage. ``[T] -> [T]``.

    At .8 against .99 the divergences are .43 and .18; at .01 against .0001, ratio 100, they are .04 and .01:

    >>> import torch
    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.0, 0.0], advantage=[1.0, 1.0])
    >>> tokens = replace(tokens, logp_behavior=torch.tensor([0.99, 0.0001]).log())
    >>> logp = torch.tensor([0.8, 0.01]).log()
    >>> KPop(phi=0.1, edge="total")(logp - tokens.logp_behavior, PolicyTokens(logp), tokens, Statistics({})).value
    tensor([0., 1.])
    """

    phi: float = 0.5
    """Largest divergence of a kept token, in nats; the authors tried .1 to .75 in mathematics, 2 in logic and code."""
    edge: Literal["weight", "total", "engine"] = "weight"
    """p is the proximal policy's, the current one's (``total``), or the sampling weights' (``engine``)."""

    def __post_init__(self) -> None:
        if not 0.0 < self.phi <= MOST_DIVERGENCE:
            raise ValueError(f"phi of kpop must lie in (0, {MOST_DIVERGENCE:g}] (0.5 is usual); got {self.phi}")

    @property
    def traits(self) -> Traits:
        """A token beyond phi is dropped, whichever way it moves."""
        return Traits(
            reads=self.edge,
            level="token",
            inputs=("logp_old",) if self.edge == "engine" else (),
            keeps_pull_back=False,
            is_mask=True,
        )

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Weight:
        """Drop what lies beyond phi in either direction."""
        trainer, engine = (logp_of(end, policy.logp, tokens) for end in ENDS[self.edge])
        return Weight((bernoulli_kl_either_way(trainer, engine) <= self.phi).to(log_ratio.dtype))
