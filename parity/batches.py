"""Arrays that every library gets alike: padded ``[B, T]`` for the others, laid end to end for tether."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tether import Denominator, TokenBatch

GRID = 2.0**-10
"""Log-probabilities are multiples of it: float32 subtracts and adds them without rounding, in any order."""
RESPONSES, GROUP, LONGEST = 12, 4, 14
SPREADS = {"near": 0.08, "far": 0.7}
"""Standard deviation of the moves of a log-probability, in nats; ``far`` has some ten times as long."""
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Batch:
    """Responses of ragged lengths, some tokens of which the policy did not choose."""

    logp: Tensor
    """Under the weights being updated, ``[B, T]``."""
    behavior: Tensor
    """Under the distribution sampled from, ``[B, T]``."""
    anchor: Tensor
    """Under the weights when the batch was taken, ``[B, T]``."""
    reference: Tensor
    """Under the frozen reference, ``[B, T]``."""
    advantage: Tensor
    """Of each response, ``[B]``: both signs, and one of 0."""
    mask: Tensor
    """Tokens trained on, ``[B, T]``, bool."""
    length: Tensor
    """Tokens of each response, tool output among them, ``[B]``; what lies behind is padding."""

    @property
    def everywhere(self) -> Tensor:
        """The advantage at every token, ``[B, T]``."""
        return self.advantage[:, None].expand_as(self.logp)

    @property
    def inside(self) -> Tensor:
        """Tokens that are no padding, ``[B, T]``."""
        return torch.arange(self.logp.shape[1]) < self.length[:, None]

    @property
    def denominator(self) -> Denominator:
        """Counts of the step that this batch is."""
        return Denominator(num_tokens=int(self.mask.sum()), num_sequences=int(self.mask.any(1).sum()))

    @property
    def tokens(self) -> TokenBatch:
        """What tether takes: no padding. Clipped against the behavior policy until an algorithm chooses another."""
        inside = self.inside
        rows = torch.arange(len(self.logp))[:, None].expand_as(self.logp)
        return TokenBatch(
            logp_behavior=self.behavior[inside],
            logp_proximal=self.behavior[inside],
            logp_anchor=self.anchor[inside],
            advantage=self.everywhere[inside],
            trainable=self.mask[inside],
            sequence=rows[inside],
            group=rows[inside] // GROUP,
            staleness=torch.zeros_like(rows[inside]),
            logp_reference=self.reference[inside],
        )


def batch(kind: str, seed: int) -> Batch:
    """Random, and the same on every machine."""
    rng = np.random.default_rng([seed, len(kind)])
    shape = (RESPONSES, LONGEST)
    spread = SPREADS[kind]

    def move(size: float) -> np.ndarray:
        heavy = np.where(rng.random(shape) < 0.06, 4.0, 1.0) if kind == "far" else 1.0
        return rng.standard_normal(shape) * size * heavy

    anchor = -rng.exponential(1.2, shape) - 0.02
    behavior, logp = anchor + move(0.5 * spread), anchor + move(spread)
    reference = anchor + move(2 * spread)
    length = np.array([1, LONGEST, *rng.integers(1, LONGEST + 1, RESPONSES - 2)])
    inside = np.arange(LONGEST) < length[:, None]
    mask = inside & ((rng.random(shape) > 0.2) | (np.arange(LONGEST) == 0))
    advantage = rng.standard_normal(RESPONSES)
    advantage[5] = 0.0
    return Batch(
        logp=_probable(logp),
        behavior=_probable(behavior),
        anchor=_probable(anchor),
        reference=_probable(reference),
        advantage=torch.tensor(advantage, dtype=torch.float32),
        mask=torch.tensor(mask),
        length=torch.tensor(length),
    )


def with_empty_response(given: Batch) -> Batch:
    """The same, but no token of the last two responses is trained on."""
    mask = given.mask.clone()
    mask[-2:] = False
    return replace(given, mask=mask)


def beyond_guard(given: Batch) -> Batch:
    """The same, but two tokens of every response of three or more have moved by 23 nats, one up and one down."""
    behavior, logp = given.behavior.clone(), given.logp.clone()
    long = given.length >= 3
    for column, (of_behavior, of_logp) in enumerate([(-24.0, -1.0), (-1.0, -24.0)], start=1):
        behavior[long, column], logp[long, column] = of_behavior, of_logp
    return replace(given, behavior=behavior, logp=logp, anchor=behavior)


def upwards(given: Batch) -> Batch:
    """The same, but every response of negative advantage has become likelier by 12 nats a token."""
    logp = torch.where(given.advantage[:, None] < 0, torch.full_like(given.logp, -1.0), given.logp)
    behavior = torch.where(given.advantage[:, None] < 0, torch.full_like(given.logp, -13.0), given.behavior)
    return replace(given, logp=logp, behavior=behavior, anchor=behavior)


def _probable(logp: np.ndarray) -> Tensor:
    """On the grid, and the logarithm of a probability below 1."""
    return torch.tensor(np.minimum(np.round(logp / GRID), -1.0) * GRID, dtype=torch.float32)
