"""From groups to a step: advantages, micro-batches by token budget, counts of the whole step.

Everything here is arithmetic on finished groups. Absolute versions travel; staleness is made by the trainer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from tether.core.advantage import Advantage
from tether.core.aggregation import Denominator
from tether.errors import DataError, NonFiniteError
from tether.models.policy import ModelInputs
from tether.models.sharing import PromptSharing
from tether.records import Completion, Floats, Group, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rollout with the credit it earned in its group."""

    rollout: Rollout
    group: int
    """Index of its group in the run."""
    advantage: float

    @property
    def num_tokens(self) -> int:
        """Prompt and completion: what it costs of a token budget."""
        return len(self.rollout.prompt.token_ids) + len(self.rollout.completion)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Rollouts of one prompt that are one row of the model: the prompt once, then every completion."""

    rows: tuple[Row, ...]

    @property
    def num_tokens(self) -> int:
        """The prompt and all completions."""
        return len(self.rows[0].rollout.prompt.token_ids) + sum(len(row.rollout.completion) for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Whole responses that go through the model together; token fields are ``[T]``."""

    rows: tuple[Row, ...]
    inputs: ModelInputs
    logp_behavior: Float[Tensor, "T"]
    advantage: Float[Tensor, "T"]
    version: Int64[Tensor, "T"]
    trainable: Bool[Tensor, "T"]
    sequence: Int64[Tensor, "T"]
    group: Int64[Tensor, "T"]
    entropy_behavior: Float[Tensor, "T"] | None = None
    """``None`` where an engine cannot tell."""
    logp_old: Float[Tensor, "T"] | None = None
    """NaN where not known; ``None`` where it is not known of any token of the step."""
    is_cached_older: Bool[Tensor, "T"] | None = None
    """Whether the token was sampled over a cache of older weights; ``None`` where no engine said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one optimizer update is made from."""

    micro_batches: tuple[MicroBatch, ...]
    denominator: Denominator
    """Counts of the whole step, before any mask."""
    groups: tuple[Group, ...]
    num_unrouted: int = 0
    """Tokens without a recorded route that take the trainer's own, where routes are replayed."""
    num_unsupported: int = 0
    """Sampled tokens without a kept set that take the whole vocabulary, where what is kept is replayed."""

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row, in the order of the micro-batches."""
        return tuple(row for micro_batch in self.micro_batches for row in micro_batch.rows)


def pack(
    groups: Sequence[Group],
    advantage: Advantage,
    *,
    token_budget: int,
    pad_id: int,
    device: str,
    sharing: PromptSharing | None = None,
) -> Step:
    """Pack groups into micro-batches of at most ``token_budget`` padded tokens; a response is never split.

    With ``sharing``, completions of a group stand together behind one copy of their prompt. Rows of the model are
    sorted by length, so that little is padded; one longer than the budget goes alone. Neither order nor split nor
    sharing changes loss or gradient.
    """
    rows = credited(groups, advantage)
    for row in rows:
        check_finite(row.rollout)
    bundles = sorted(bundled(rows, sharing, token_budget), key=lambda b: (b.num_tokens, b.rows[0].rollout.id))
    has_old = any(row.rollout.logp_old is not None for row in rows)
    micro_batches = tuple(_micro_batch(chunk, pad_id, device, has_old) for chunk in split(bundles, token_budget))
    return Step(
        micro_batches=micro_batches,
        denominator=Denominator(
            num_tokens=sum(len(row.rollout.completion) for row in rows),
            num_sequences=sum(len(row.rollout.completion) > 0 for row in rows),
        ),
        groups=tuple(groups),
    )


def credited(groups: Sequence[Group], advantage: Advantage) -> list[Row]:
    """Advantages within each whole group; a group that has none (one response, ``single = drop``) is left out."""
    rows: list[Row] = []
    for group in groups:
        rewards = torch.tensor([rollout.reward for rollout in group.rollouts], dtype=torch.float64)
        credit = advantage(rewards)
        if credit is not None:
            pairs = zip(group.rollouts, credit.tolist(), strict=True)
            rows += [Row(rollout=rollout, group=group.index, advantage=a) for rollout, a in pairs]
    return rows


def bundled(rows: Sequence[Row], sharing: PromptSharing | None, token_budget: int) -> list[Bundle]:
    """Deal the rows of each prompt into bundles of about equal length, each within the budget unless it is one row."""
    if sharing is None:
        return [Bundle(rows=(row,)) for row in rows]
    families: dict[tuple[int, tuple[int, ...], bytes], list[Row]] = {}
    for row in rows:
        families.setdefault((row.group, row.rollout.prompt.token_ids, _prompt_routes(row.rollout)), []).append(row)
    bundles: list[Bundle] = []
    for (_, prompt, _), family in families.items():
        mean = sum(len(row.rollout.completion) for row in family) / len(family)
        fewest = math.ceil(len(family) / sharing.completions_per_row(len(prompt), mean))
        for count in range(fewest, len(family) + 1):
            dealt = _deal(family, count)
            if all(len(b.rows) == 1 or b.num_tokens <= token_budget for b in dealt):
                break
        bundles += dealt
    return bundles


def _prompt_routes(rollout: Rollout) -> bytes:
    """One copy of a prompt has one route; an engine that read it twice may have taken two."""
    experts = rollout.completion.experts
    return b"" if experts is None else experts[: len(rollout.prompt.token_ids)].tobytes()


def _deal(family: Sequence[Row], count: int) -> list[Bundle]:
    """Longest first, each to the bundle that is shortest so far."""
    hands: list[list[Row]] = [[] for _ in range(count)]
    sizes = [0] * count
    for row in sorted(family, key=lambda row: (-row.num_tokens, row.rollout.id)):
        least = sizes.index(min(sizes))
        hands[least].append(row)
        sizes[least] += len(row.rollout.completion) + 1  # so that empty completions are dealt evenly too
    return [Bundle(rows=tuple(hand)) for hand in hands]


def split(bundles: Sequence[Bundle], token_budget: int) -> list[list[Bundle]]:
    """Cut bundles sorted by length into chunks whose padded size, bundles x longest, is within the budget.

    >>> split([], 100)
    []
    """
    chunks: list[list[Bundle]] = []
    for bundle in bundles:
        if chunks and (len(chunks[-1]) + 1) * bundle.num_tokens <= token_budget:
            chunks[-1].append(bundle)
        else:
            chunks.append([bundle])
    return chunks


def check_finite(rollout: Rollout) -> None:
    """Refuse what an engine reported as not a number, by rollout, token and version; or in 16 bits."""
    dtype = rollout.completion.logp.dtype
    if dtype not in (np.float32, np.float64):
        raise DataError(
            f"log-probs of an engine must be float32, or their differences are rounding; those of rollout "
            f"{rollout.id!r} are {dtype}: have it compute log_softmax in float32, a cast afterwards brings nothing back"
        )
    for name in ("logp", "entropy"):
        values = getattr(rollout.completion, name)
        if values is not None and not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values)).tolist()
            at = bad[0]
            raise NonFiniteError(
                f"{name} of the engine is {values[at]} at token {at} of rollout {rollout.id!r} (id "
                f"{rollout.completion.token_ids[at]}, version {rollout.completion.version[at]}); {len(bad)} such "
                "tokens. Check the engine's dtype and the weights it holds"
            )
    if rollout.completion.logp.max(initial=0.0) > 1e-4:
        raise DataError(
            f"logp of the engine is above 0 in rollout {rollout.id!r} (largest {rollout.completion.logp.max():.4g}); "
            "a log-probability cannot be: the engine reports something else"
        )


def _micro_batch(bundles: Sequence[Bundle], pad_id: int, device: str, has_old: bool) -> MicroBatch:
    rows = [row for bundle in bundles for row in bundle.rows]
    completions = [row.rollout.completion for row in rows]

    def tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    lengths = [len(c) for c in completions]
    advantage = np.repeat(np.array([row.advantage for row in rows], dtype=np.float32), lengths)
    group = np.repeat(np.array([row.group for row in rows], dtype=np.int64), lengths)
    entropy = known_entropy(completions)
    older = [is_cached_older(c) for c in completions] if any(c.cached_version is not None for c in completions) else []
    return MicroBatch(
        rows=tuple(rows),
        inputs=_inputs(bundles, pad_id, device),
        logp_behavior=tensor(np.concatenate([c.logp for c in completions]), torch.float32),
        entropy_behavior=None if entropy is None else tensor(entropy, torch.float32),
        advantage=tensor(advantage, torch.float32),
        version=tensor(np.concatenate([c.version for c in completions]), torch.int64),
        trainable=torch.ones(sum(lengths), dtype=torch.bool, device=device),
        sequence=tensor(np.repeat(np.arange(len(rows), dtype=np.int64), lengths), torch.int64),
        group=tensor(group, torch.int64),
        logp_old=tensor(np.concatenate([known_old(row.rollout) for row in rows]), torch.float32) if has_old else None,
        is_cached_older=tensor(np.concatenate(older), torch.bool) if older else None,
    )


def known_old(rollout: Rollout) -> Floats:
    """``[L]`` the old log-probs that a rollout brings, NaN where it brings none."""
    nothing: Floats = np.full(len(rollout.completion), np.nan, np.float32)
    return nothing if rollout.logp_old is None else rollout.logp_old


def known_entropy(completions: Sequence[Completion]) -> Floats | None:
    """``[T]`` the entropies of completions laid end to end; ``None`` unless all engines told them."""
    told = [c.entropy for c in completions if c.entropy is not None]
    return np.concatenate(told) if len(told) == len(completions) else None


def is_cached_older(completion: Completion) -> NDArray[np.bool_]:
    """``[L]`` whether each token was sampled over a cache of weights older than its own."""
    if completion.cached_version is None:
        return np.zeros(len(completion), np.bool_)
    older: NDArray[np.bool_] = completion.cached_version < completion.version
    return older


def _inputs(bundles: Sequence[Bundle], pad_id: int, device: str) -> ModelInputs:
    """Lay each bundle out as a row of ids: the prompt, then its completions one after the other."""
    shape = (len(bundles), max(bundle.num_tokens for bundle in bundles))
    ids, position, branch = (np.full(shape, fill, dtype=np.int64) for fill in (pad_id, 0, -1))
    places: list[NDArray[np.int64]] = []  # row and column that predict, and the id, of every sampled token
    for b, bundle in enumerate(bundles):
        prompt = bundle.rows[0].rollout.prompt.token_ids
        start = len(prompt)
        ids[b, :start], position[b, :start], branch[b, :start] = prompt, np.arange(start), 0
        for number, row in enumerate(bundle.rows, 1):
            sampled = row.rollout.completion.token_ids
            own = slice(start, start + len(sampled))
            ids[b, own], branch[b, own] = sampled, number
            position[b, own] = np.arange(len(prompt), len(prompt) + len(sampled))
            column = np.arange(start - 1, start - 1 + len(sampled))
            column[:1] = len(prompt) - 1  # the first is predicted from the prompt, wherever it stands
            places.append(np.stack([np.full(len(sampled), b), column, sampled]))
            start += len(sampled)
    index = torch.from_numpy(np.concatenate(places, axis=1)).to(device)
    is_shared = any(len(bundle.rows) > 1 for bundle in bundles)
    return ModelInputs(
        input_ids=torch.from_numpy(ids).to(device),
        row=index[0],
        column=index[1],
        ids=index[2],
        position=torch.from_numpy(position).to(device) if is_shared else None,
        branch=torch.from_numpy(branch).to(device) if is_shared else None,
    )
