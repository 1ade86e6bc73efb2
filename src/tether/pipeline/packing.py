"""From groups to a step: advantages, micro-batches by token budget, counts of the whole step.

Everything here is arithmetic on finished groups. Absolute versions travel; staleness is made by the trainer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from tether.core.advantage import Advantage
from tether.core.aggregation import Denominator
from tether.errors import DataError, NonFiniteError
from tether.models.policy import ModelInputs
from tether.records import Group, Rollout


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
class MicroBatch:
    """Whole responses that go through the model together; token fields are ``[T]``."""

    rows: tuple[Row, ...]
    inputs: ModelInputs
    logp_behavior: Float[Tensor, "T"]
    entropy_behavior: Float[Tensor, "T"]
    advantage: Float[Tensor, "T"]
    version: Int64[Tensor, "T"]
    trainable: Bool[Tensor, "T"]
    sequence: Int64[Tensor, "T"]
    group: Int64[Tensor, "T"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one optimizer update is made from."""

    micro_batches: tuple[MicroBatch, ...]
    denominator: Denominator
    """Counts of the whole step, before any mask."""
    groups: tuple[Group, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """Every row, in the order of the micro-batches."""
        return tuple(row for micro_batch in self.micro_batches for row in micro_batch.rows)


def pack(groups: Sequence[Group], advantage: Advantage, *, token_budget: int, pad_id: int, device: str) -> Step:
    """Pack groups into micro-batches of at most ``token_budget`` padded tokens; a response is never split.

    Rows are sorted by length, so that little is padded; one longer than the budget goes alone. The order of rows
    and their split change neither loss nor gradient.
    """
    rows = sorted(credited(groups, advantage), key=lambda row: (row.num_tokens, row.rollout.id))
    for row in rows:
        check_finite(row.rollout)
    micro_batches = tuple(_micro_batch(chunk, pad_id, device) for chunk in split(rows, token_budget))
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


def split(rows: Sequence[Row], token_budget: int) -> list[list[Row]]:
    """Cut rows sorted by length into chunks whose padded size, rows x longest, is within the budget.

    >>> split([], 100)
    []
    """
    chunks: list[list[Row]] = []
    for row in rows:
        if chunks and (len(chunks[-1]) + 1) * row.num_tokens <= token_budget:
            chunks[-1].append(row)
        else:
            chunks.append([row])
    return chunks


def check_finite(rollout: Rollout) -> None:
    """Refuse what an engine reported as not a number, by rollout, token and version."""
    for name in ("logp", "entropy"):
        values = getattr(rollout.completion, name)
        if bad := np.flatnonzero(~np.isfinite(values)).tolist():
            at = bad[0]
            raise NonFiniteError(
                f"{name} of the engine is {values[at]} at token {at} of rollout {rollout.id!r} (id "
                f"{rollout.completion.token_ids[at]}, version {rollout.completion.version[at]}); {len(bad)} such "
                "tokens. Check the engine's dtype and the weights it holds"
            )
    if (rollout.completion.logp > 1e-4).any():
        raise DataError(
            f"logp of the engine is above 0 in rollout {rollout.id!r} (largest {rollout.completion.logp.max():.4g}); "
            "a log-probability cannot be: the engine reports something else"
        )


def _micro_batch(rows: Sequence[Row], pad_id: int, device: str) -> MicroBatch:
    width = max(row.num_tokens for row in rows)
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    place: list[tuple[int, int, int]] = []
    for i, row in enumerate(rows):
        prompt, completion = row.rollout.prompt.token_ids, row.rollout.completion.token_ids
        ids[i, : len(prompt)] = prompt
        ids[i, len(prompt) : row.num_tokens] = completion
        place.append((i, len(prompt), len(completion)))
    index = np.concatenate([np.full(n, i, dtype=np.int64) for i, _, n in place])
    column = np.concatenate([np.arange(start - 1, start - 1 + n, dtype=np.int64) for _, start, n in place])
    completions = [row.rollout.completion for row in rows]

    def tensor(values: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(values).to(device=device, dtype=dtype)

    lengths = [n for *_, n in place]
    advantage = np.repeat(np.array([row.advantage for row in rows], dtype=np.float32), lengths)
    group = np.repeat(np.array([row.group for row in rows], dtype=np.int64), lengths)
    return MicroBatch(
        rows=tuple(rows),
        inputs=ModelInputs(
            input_ids=tensor(ids, torch.int64),
            row=tensor(index, torch.int64),
            column=tensor(column, torch.int64),
            ids=tensor(np.concatenate([c.token_ids for c in completions]), torch.int64),
        ),
        logp_behavior=tensor(np.concatenate([c.logp for c in completions]), torch.float32),
        entropy_behavior=tensor(np.concatenate([c.entropy for c in completions]), torch.float32),
        advantage=tensor(advantage, torch.float32),
        version=tensor(np.concatenate([c.version for c in completions]), torch.int64),
        trainable=torch.ones(len(index), dtype=torch.bool, device=device),
        sequence=tensor(index, torch.int64),
        group=tensor(group, torch.int64),
    )
