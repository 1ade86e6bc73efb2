"""How far the engine's numbers are from the trainer's on tokens that the engine sampled. Arithmetic alone.

With ``d = logp of the trainer - logp of the engine`` of a sampled token, in nats, at equal weights.

A token is *rerouted* in a mixture of experts if the two sides chose different sets of experts, in some layer, at the
position that predicts it; *rerouted earlier* if they did so only at positions before that, whose keys and values it
reads; else its routes agree. A replay can take away what other routes did to the first two. The last are computed as
before, to the last bit but for the gates' rounding: what they are apart is the number format, and where that is the
larger part, the largest ``|d|`` of all tokens does not move.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tether.core.ratio import edge_log_ratio, log_ratio
from tether.core.statistics import AbsoluteQuantile, measure
from tether.core.tokens import TokenBatch
from tether.corrections.estr import ESTR, score
from tether.pipeline.agreement import NEAR_ONE
from tether.pipeline.packing import known_entropy
from tether.pipeline.places import by_position, by_probability
from tether.pipeline.scoring import Logps
from tether.records import Experts, Rollout
from tether.replay.routing import is_rerouted

MASKED_SHARES = (0.01, 0.02)
"""Shares of tokens without staleness that a good threshold of ``estr`` masks."""
LEAST_APART = 1e-4
"""Nats: if no token is so far apart, a threshold from these tokens would mask whatever moves at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """``|d|`` over some tokens."""

    tokens: int
    mean: float
    """Of ``d`` with its sign: what all tokens are off by together, as by another temperature or a cut vocabulary."""
    abs_mean: float
    p95: float
    """The smallest ``|d|`` that 95 % of the tokens do not exceed."""
    p99: float
    """Likewise 99 %."""
    max: float
    tail: float
    """Share of tokens whose ratio ``e^d`` is not ``NEAR_ONE``."""
    k3: float
    """Mean of ``e^d - 1 - d``: an estimate of KL(engine || trainer), in nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A threshold of ``estr`` by what it masks of these tokens."""

    share: float
    """Of the tokens, asked for."""
    quantile: float
    """The smallest score that the other tokens do not exceed."""
    value: float | None
    """The quantile rounded up to three digits; ``None`` where it is 0, or the two sides agree but for rounding."""
    masked: float
    """Share of the tokens above the rounded quantile; at most what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One way to compute the tokens, against the engine."""

    all: Distance
    by_route: Mapping[str, Distance | None]
    """Apart for ``here``, ``earlier`` and ``nowhere`` rerouted tokens; ``None`` of none; empty without routes."""
    by_position: Mapping[str, Distance | None]
    """Apart by the token's place in its response."""
    by_probability: Mapping[str, Distance | None]
    """Apart by the probability that the engine gave the token."""
    ratio: tuple[float, float]
    """Least and largest geometric mean of a response's ratios ``e^d``."""
    product: tuple[float, float]
    """Least and largest product of them."""
    estr: tuple[Threshold, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerouting:
    """Where the trainer's own routes differ from the engine's."""

    pair_share: float
    """Of (token, layer) pairs, at the positions that predict the sampled tokens."""
    token_share: float
    """Of sampled tokens with at least one such layer."""
    earlier_share: float
    """Of sampled tokens with none, that read a position before which has one."""
    here: NDArray[np.bool_]
    """``[T]``."""
    earlier: NDArray[np.bool_]
    """``[T]``, where ``here`` is not."""

    def parts(self) -> dict[str, NDArray[np.bool_]]:
        """Every token in one of three."""
        return {"here": self.here, "earlier": self.earlier, "nowhere": ~(self.here | self.earlier)}


def rerouting_of(rollouts: Sequence[Rollout], own: Mapping[str, Experts]) -> Rerouting:
    """The recorded routes of rollouts against the trainer's ``own`` by rollout id, both as ``Completion.experts``."""
    pairs, earlier = [], []
    for rollout in rollouts:
        assert rollout.completion.experts is not None, "they were asked for"
        differs = is_rerouted(rollout.completion.experts, own[rollout.id])  # [P + L, layers]
        first = len(rollout.prompt.token_ids) - 1  # a token is predicted from the position before its own
        before = np.logical_or.accumulate(differs.any(-1))
        pairs.append(differs[first:-1])
        earlier.append(np.concatenate([[False], before[:-1]])[first:-1])
    layers = np.concatenate(pairs)
    here: NDArray[np.bool_] = np.logical_or.reduce(layers, axis=-1)
    only_earlier = np.concatenate(earlier) & ~here
    return Rerouting(
        pair_share=float(layers.mean()),
        token_share=float(here.mean()),
        earlier_share=float(only_earlier.mean()),
        here=here,
        earlier=only_earlier,
    )


def distance_of(rollouts: Sequence[Rollout], logp: Logps) -> Distance:
    """The trainer's ``logp [T]`` against what the engine reported, over all tokens."""
    found = _distance(torch.from_numpy(logp), tokens_of(rollouts))
    assert found is not None, "an engine samples one token at least"
    return found


def compare(rollouts: Sequence[Rollout], logp: Logps, parts: Mapping[str, NDArray[np.bool_]]) -> Comparison:
    """The trainer's ``logp [T]`` against what the engine reported, in all and for ``parts [T]`` of the tokens."""
    tokens, trained = tokens_of(rollouts), torch.from_numpy(logp)

    def apart(masks: Mapping[str, NDArray[np.bool_]]) -> dict[str, Distance | None]:
        kept = {name: torch.from_numpy(mask) for name, mask in masks.items()}
        return {name: _distance(trained[mask], tokens.select(mask)) for name, mask in kept.items()}

    return Comparison(
        all=distance_of(rollouts, logp),
        by_route=apart(parts),
        by_position=apart(by_position(rollouts)),
        by_probability=apart(by_probability(tokens.logp_behavior.numpy())),
        ratio=_range(edge_log_ratio("total", trained, tokens, "sequence")),
        product=_range(edge_log_ratio("total", trained, tokens, "product")),
        estr=tuple(thresholds(trained, tokens)),
    )


def thresholds(logp: Tensor, tokens: TokenBatch) -> list[Threshold]:
    """For each of ``MASKED_SHARES`` the threshold of ``estr`` that masks so much of these tokens.

    It is a quantile of the score ``d^2 / (H + epsilon)`` (arXiv:2607.22186), exact, not interpolated.
    Empty where the engine does not tell entropies.
    """
    if tokens.entropy_behavior is None:
        return []
    d = log_ratio(logp, tokens.logp_behavior)
    scores = score(d, tokens.entropy_behavior, ESTR(threshold=1.0).epsilon)
    is_apart = float(d.abs().amax()) >= LEAST_APART
    wanted = {share: AbsoluteQuantile(1.0 - share) for share in MASKED_SHARES}
    found = measure([(scores, tokens)], wanted.values())
    made = []
    for share, statistic in wanted.items():
        quantile = float(found[statistic])
        value = rounded_up(quantile)
        masked = float((scores > value).double().mean())
        usable = value if is_apart and value > 0 else None
        made.append(Threshold(share=share, quantile=quantile, value=usable, masked=masked))
    return made


def rounded_up(value: float) -> float:
    """To three significant digits, never down; 0 stays 0.

    >>> rounded_up(0.0123401), rounded_up(1.23), rounded_up(0.0)
    (0.0124, 1.23, 0.0)
    """
    if value == 0:
        return 0.0
    digits = Decimal(1).scaleb(math.floor(math.log10(value)) - 2)
    return float(Decimal(repr(value)).quantize(digits, ROUND_CEILING))


def tokens_of(rollouts: Sequence[Rollout]) -> TokenBatch:
    """The sampled tokens of several rollouts, one rollout after the other; of no staleness, no credit."""
    completions = [rollout.completion for rollout in rollouts]
    logp = torch.from_numpy(np.concatenate([c.logp for c in completions]))
    sequence = torch.from_numpy(np.repeat(np.arange(len(rollouts)), [len(c) for c in completions]))
    entropy = known_entropy(completions)
    return TokenBatch(
        logp_behavior=logp,
        logp_proximal=logp,
        advantage=torch.zeros_like(logp),
        trainable=torch.ones_like(logp, dtype=torch.bool),
        sequence=sequence,
        group=sequence,
        staleness=torch.zeros_like(sequence),
        entropy_behavior=None if entropy is None else torch.from_numpy(entropy),
    )


def _distance(logp: Tensor, tokens: TokenBatch) -> Distance | None:
    if not len(tokens):
        return None
    d, ends = log_ratio(logp, tokens.logp_behavior), (AbsoluteQuantile(0.95), AbsoluteQuantile(0.99))
    exact, found = d.double(), measure([(d, tokens)], ends)
    ratio = exact.exp()
    return Distance(
        tokens=len(tokens),
        mean=float(exact.mean()),
        abs_mean=float(exact.abs().mean()),
        p95=float(found[ends[0]]),
        p99=float(found[ends[1]]),
        max=float(exact.abs().max()),
        tail=float(((ratio < NEAR_ONE[0]) | (ratio > NEAR_ONE[1])).double().mean()),
        k3=float((exact.expm1() - exact).mean()),
    )


def _range(log_ratios: Tensor) -> tuple[float, float]:
    low, high = (float(end.exp()) for end in log_ratios.double().aminmax())
    return low, high
