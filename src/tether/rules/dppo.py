"""DPPO: a mask on outward tokens by the divergence of the two policies, not by their ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tether.core.divergences import bernoulli_kl, binary_tv, kullback_leibler, partition, total_variation
from tether.core.proximal import provided
from tether.core.rule import PolicyTokens, Surrogate, Traits
from tether.core.statistics import Statistics
from tether.core.stretches import in_stretches
from tether.core.surrogate import MOST_RADIUS, check_radii, clipped, reinforced
from tether.core.tokens import TokenBatch
from tether.registry import RULES

Divergence = Literal["tv", "kl", "top-k-tv", "top-k-kl"]
TOP_K: Final = ("top_k_behavior", "top_k")
USUAL: Final[dict[Divergence, float]] = {"tv": 0.15, "kl": 0.05, "top-k-tv": 0.15, "top-k-kl": 0.05}


@RULES.register("dppo")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class DPPO:
    """Drop outward tokens where the divergence D of pi from the proximal mu exceeds delta (arXiv:2602.04879).

    Outward: ``A (r - 1) > 0`` with ``r = pi / mu``; a token that moves back is never dropped. D, without gradient:

    - ``tv``: ``|pi - mu|`` of the sampled token. The mask is the ratio window ``|r - 1| <= delta / mu``: narrow for a
      probable token, wide for a rare one;
    - ``kl``: ``D(mu || pi)`` of "this token or another";
    - ``top-k-tv``, ``top-k-kl``: the same over the sampled token, the K most probable others of the engine, and the
      rest. Never less than the binary form, which cannot see moves among tokens that were not sampled.

    With M the mask, the objective is by ``form``:

    - ``capped``: ``sg[min(r, cap)] A log pi M``, the official code (cap 20; verl's config makes it 3);
    - ``differentiable``: ``r A M``, the same gradient up to the cap (SkyRL, prime-rl);
    - ``clip``: PPO's clip times M, the baseline of the SAT paper, there with ``tv`` and 0.001 on both sides.

    Token by token; input and output ``[T]``. A token at mu = 0.5 may rise to 0.55, not to 0.68:

    >>> from dataclasses import replace
    >>> from tether.core.examples import tokens_of
    >>> tokens, _ = tokens_of(log_ratio=[0.0, 0.0], advantage=[1.0, 1.0])
    >>> tokens = replace(tokens, logp_proximal=torch.tensor([0.5, 0.5]).log())
    >>> logp = torch.tensor([0.55, 0.68]).log()
    >>> out = DPPO()(logp - tokens.logp_proximal, PolicyTokens(logp), tokens, Statistics({}))
    >>> [round(x, 4) for x in out.objective.tolist()], out.active.tolist()
    ([-0.6576, -0.0], [True, False])
    """

    divergence: Divergence = "tv"
    """How D is measured."""
    delta_low: float | None = None
    """Largest D of a token with A < 0 that falls; by default 0.15 in total variation, 0.05 in KL."""
    delta_high: float | None = None
    """Largest D of a token with A > 0 that rises; by default as ``delta_low``'s."""
    form: Literal["capped", "differentiable", "clip"] = "capped"
    """What the mask is applied to."""
    cap: float = 20.0
    """Largest weight of form ``capped``."""
    epsilon_low: float = 0.2
    """How far below 1 form ``clip`` lets the ratio go."""
    epsilon_high: float = 0.2
    """How far above 1 form ``clip`` lets the ratio go."""

    def __post_init__(self) -> None:
        for name, delta in (("delta_low", self.delta_low), ("delta_high", self.delta_high)):
            if delta is not None and not 0 < delta <= MOST_RADIUS:
                usual = USUAL[self.divergence]
                raise ValueError(f"{name} of dppo must lie in (0, {MOST_RADIUS:g}] ({usual} is usual); got {delta}")
        if not 1 <= self.cap <= MOST_RADIUS:
            raise ValueError(f"cap of dppo must lie in [1, {MOST_RADIUS:g}] (20 is usual); got {self.cap}")
        check_radii("dppo", self.epsilon_low, self.epsilon_high, None)

    @property
    def traits(self) -> Traits:
        """The top-k forms need both policies' log-probabilities of the same K ids."""
        return Traits(level="token", inputs=TOP_K if self.divergence.startswith("top-k") else ())

    def __call__(
        self, log_ratio: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch, stats: Statistics
    ) -> Surrogate:
        """Mask every token that has moved outward too far."""
        kept = self._kept(log_ratio.detach(), policy, tokens)
        if self.form == "capped":
            weight = log_ratio.detach().exp().clamp(max=self.cap)
            return reinforced(torch.where(kept, weight, 0.0), policy, tokens.advantage)
        if self.form == "differentiable":
            return Surrogate(objective=torch.where(kept, log_ratio.exp() * tokens.advantage, 0.0), active=kept)
        out = clipped(log_ratio, tokens.advantage, (1.0 - self.epsilon_low, 1.0 + self.epsilon_high))
        return Surrogate(objective=torch.where(kept, out.objective, 0.0), active=out.active & kept)

    def _kept(self, moved: Float[Tensor, "T"], policy: PolicyTokens, tokens: TokenBatch) -> Bool[Tensor, "T"]:
        known = [moved, tokens.advantage, tokens.logp_proximal, policy.logp.detach()]
        if self.divergence.startswith("top-k"):
            known += [provided(tokens.top_k_behavior, "top_k_behavior"), provided(policy.top_k, "top_k").detach()]
        return in_stretches(self._kept_of, *known)

    def _kept_of(self, moved: Tensor, advantage: Tensor, mu: Tensor, pi: Tensor, *others: Tensor) -> Bool[Tensor, "_"]:
        usual = USUAL[self.divergence]
        low = usual if self.delta_low is None else self.delta_low
        high = usual if self.delta_high is None else self.delta_high
        if others:
            distance = total_variation if self.divergence == "top-k-tv" else kullback_leibler
            apart = distance(*(partition(*each) for each in zip((mu, pi), others, strict=True)))
        else:
            apart = (binary_tv if self.divergence == "tv" else bernoulli_kl)(mu, pi)
        rises = moved > 0
        far = (rises & (apart > high)) | (~rises & (apart > low))  # by logic: a select by a random mask is slow
        return ~(far & (advantage * moved > 0))
