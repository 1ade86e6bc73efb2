"""The nouns that travel between rooms and processes: frozen, picklable, no torch.

Token arrays are numpy: a record can be written, sent or shown on a machine that has no torch.
Shapes: ``L`` is the number of tokens of one completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]
Experts = NDArray[np.integer[Any]]
NO_EXPERT: Final = -1
"""In the place of an expert where no route is known."""

Merge = Literal["mean", "sum", "max", "min", "last"]
Finish = Literal["stop", "length", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question of a task, ready for an engine."""

    id: str
    """Stable over runs: the task's name, the split and the index."""
    text: str
    token_ids: tuple[int, ...]
    reference: str
    """What the reward compares with; never shown to the policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled for one request; every array is ``[L]``, one entry a token, unless it says otherwise."""

    token_ids: Ints
    """Sampled ids; ends in the end-of-sequence id if ``finish`` is ``stop``."""
    logp: Floats
    """Log-probability, in nats, of each id under the distribution really sampled from."""
    entropy: Floats
    """Entropy, in nats, of that distribution before truncation."""
    version: Ints
    """Optimizer updates behind the weights that made the token's logits."""
    finish: Finish
    """``stop``: with an end-of-sequence id; ``length``: at the most tokens asked for; ``interrupted``: before either,
    and it may be gone on with."""
    cached_version: Ints | None = None
    """Version that computed the oldest entry of the key-value cache that each token was sampled over; ``None``: the
    token's own, as where no cache outlives a version."""
    top_k_ids: Ints | None = None
    """``[L, k]`` most probable ids, where the request asks."""
    top_k_logp: Floats | None = None
    """``[L, k]`` their log-probabilities."""
    experts: Experts | None = None
    """``[P + L, layers, k]``, where the request asks: the experts that each of the ``P`` prompt tokens and of the
    sampled ones went through, in each layer that has a router, in the order the router named them. ``NO_EXPERT`` (-1)
    where no route is known: of the last sampled token, which no forward pass read, and what an engine cannot tell."""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logp), len(self.entropy), len(self.version)}
        if len(lengths) != 1:
            raise ValueError(
                f"arrays of a Completion must have one length; got ids {len(self.token_ids)}, logp {len(self.logp)}, "
                f"entropy {len(self.entropy)}, version {len(self.version)}"
            )
        if self.cached_version is not None and len(self.cached_version) != len(self.version):
            raise ValueError(
                f"arrays of a Completion must have one length; got version {len(self.version)}, cached_version "
                f"{len(self.cached_version)}"
            )
        if self.experts is not None and (self.experts.ndim != 3 or len(self.experts) <= len(self.token_ids)):
            raise ValueError(
                f"experts of a Completion must be [prompt and sampled tokens, layers, k]; got "
                f"{list(self.experts.shape)} for {len(self.token_ids)} sampled tokens"
            )

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One completion of a prompt, with its reward."""

    id: str
    prompt: Prompt
    completion: Completion
    text: str
    """The completion decoded, without the end-of-sequence token."""
    reward: float
    started_s: float
    """When its generation was asked for, on the run's clock."""
    finished_s: float
    """When its reward was known."""
    sampled_s: float = 0.0
    """When its last token was sampled."""
    finished_at: int = 0
    """Optimizer updates that had been made when its reward was known."""
    num_restarts: int = 0
    """How often its generation began anew, under the same id."""
    logp_old: Floats | None = None
    """``[L]`` the trainer's own log-probability of each token at the weights that sampled it, where a run acquired them
    while it sampled; NaN where it did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one prompt; the unit of admission, of advantage and of consumption."""

    id: str
    index: int
    """Place in the order of admission."""
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number with the way to merge it over steps or ranks: never guessed from its name."""

    value: float | Mapping[str, float]
    """A number, or counts by label (a histogram, merged label by label)."""
    merge: Merge = "mean"
    count: float = 1.0
    """Weight of the value in a ``mean``: how many tokens, rollouts or steps stand behind it."""


Metrics = dict[str, Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of ``events.jsonl``."""

    event: str
    """What happened: ``start``, ``publish``, ``check``, ``step``, ``skip``, ``eval``, ``warn``, ``finish`` or
    ``fail``."""
    step: int
    """Batches consumed so far."""
    version: int
    """Optimizer updates made so far."""
    metrics: Metrics = field(default_factory=dict)
    note: str = ""
