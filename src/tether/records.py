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
    problem: str = ""
    """Which problem it asks, the same each time that it is asked, such as ``dapo/7f3a``; empty where every index is
    another one."""
    pass_rate: float | None = None
    """How often another policy answered it right, 0 to 1, where its data say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """Which ids may be sampled: the most probable ones, under ``softmax(logits / temperature)``. What the limits leave
    is renormalized.

    >>> Truncation(top_k=20).is_none, Truncation().is_none
    (False, True)
    """

    top_k: int = 0
    """So many of the most probable; 0: all."""
    top_p: float = 1.0
    """The fewest of the most probable that together have at least this share of what ``top_k`` left (the nucleus); 1:
    all."""
    min_p: float = 0.0
    """Those at least this times as probable as the most probable; 0: all."""

    def __post_init__(self) -> None:
        if self.top_k < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1:
            raise ValueError(
                f"a truncation has top_k >= 0, top_p in (0, 1], min_p in [0, 1]; got top_k {self.top_k}, top_p "
                f"{self.top_p}, min_p {self.min_p}"
            )

    @property
    def is_none(self) -> bool:
        """Whether every id may be sampled."""
        return self.top_k == 0 and self.top_p == 1 and self.min_p == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSets:
    """The ids that each of ``L`` tokens was sampled among, one token after the other.

    >>> kept = KeptSets(ids=np.array([3, 5, 2], np.int32), starts=np.array([0, 2, 3], np.int64))
    >>> len(kept), kept.of(0).tolist(), kept.of(1).tolist()
    (2, [3, 5], [2])
    """

    ids: Ints
    """``[N]``, in any order within a token."""
    starts: NDArray[np.int64]
    """``[L + 1]``: those of token ``t`` are ``ids[starts[t] : starts[t + 1]]``. A token without any was sampled from
    an unknown set."""

    def __post_init__(self) -> None:
        starts = self.starts
        if not len(starts) or starts[0] != 0 or starts[-1] != len(self.ids) or (np.diff(starts) < 0).any():
            raise ValueError(
                f"starts of KeptSets must rise from 0 to the number of ids, {len(self.ids)}; got {starts.tolist()[:8]}"
            )

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, token: int) -> Ints:
        """Those of one token."""
        return self.ids[self.starts[token] : self.starts[token + 1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What an engine sampled for one request; every array is ``[L]``, one entry a token, unless it says otherwise."""

    token_ids: Ints
    """Sampled ids; ends in the end-of-sequence id if ``finish`` is ``stop``."""
    logp: Floats
    """Log-probability, in nats, of each id under the distribution really sampled from."""
    version: Ints
    """Optimizer updates behind the weights that made the token's logits."""
    finish: Finish
    """``stop``: with an end-of-sequence id; ``length``: at the most tokens asked for; ``interrupted``: before either,
    and it may be gone on with."""
    entropy: Floats | None = None
    """Entropy, in nats, of that distribution before truncation; ``None`` where the engine cannot tell."""
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
    kept: KeptSets | None = None
    """What each token was sampled among, where the request asks and truncates; ``None``: the whole vocabulary."""

    def __post_init__(self) -> None:
        names = ("token_ids", "logp", "version", "entropy", "cached_version", "top_k_ids", "top_k_logp", "kept")
        lengths = {name: len(value) for name in names if (value := getattr(self, name)) is not None}
        if len(set(lengths.values())) != 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"arrays of a Completion must have one length; got {listed}")
        if self.experts is not None and (self.experts.ndim != 3 or len(self.experts) <= len(self.token_ids)):
            raise ValueError(
                f"experts of a Completion must be [prompt and sampled tokens, layers, k]; got "
                f"{list(self.experts.shape)} for {len(self.token_ids)} sampled tokens"
            )

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a reward is asked about: a completion as text, without its end-of-sequence token."""

    text: str
    num_tokens: int = 0
    """Of the completion, the end-of-sequence token included."""
    is_cut: bool = False
    """Whether it ended at the most tokens allowed, and not by itself."""
    id: str = ""
    """Of the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """What one reward gave an answer, and how it came to it."""

    value: float
    """Before any weight."""
    status: str = ""
    """In a word, where the reward has such: ``correct``, ``wrong``, ``no_answer``, ``timeout``."""
    extracted: str | None = None
    """What was taken to be the final answer, by rewards that look for one."""
    stage: str = ""
    """What decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What all rewards together gave an answer."""

    reward: float
    """The weighted sum, which is trained on."""
    grades: Mapping[str, Grade]
    """Of each reward by its label."""
    is_right: bool
    """Whether the reward that decides this gave 1 or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One completion of a prompt, with its reward."""

    id: str
    prompt: Prompt
    completion: Completion
    text: str
    """The completion decoded, without the end-of-sequence token."""
    reward: float
    """``judgement.reward``, where it was judged."""
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
    judgement: Judgement | None = None
    """How it came to its reward."""


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
