"""When a number of a step is not one: finding the first, with what to try, and writing the batch to a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from tether.core.rule import PolicyTokens
from tether.core.tokens import TokenBatch
from tether.errors import NonFiniteError
from tether.pipeline.packing import MicroBatch, Row

DUMP_FILE = "nonfinite-batch.pt"


def explain(
    micro_batches: Sequence[MicroBatch], batches: Sequence[TokenBatch], policies: Sequence[PolicyTokens], updates: int
) -> str:
    """A message that names the first non-finite number of a step that has one: tensor, rollout, token, versions."""
    for micro_batch, tokens, policy in zip(micro_batches, batches, policies, strict=True):
        tensors = {
            "logp of the trainer": policy.logp,
            "logp of the reference": tokens.logp_reference,
            "old logp of the trainer": tokens.logp_old,
            "entropy of the trainer": policy.entropy,
            "advantage": tokens.advantage,
        }
        for name, tensor in tensors.items():
            bad = [] if tensor is None else (~tensor.isfinite() & micro_batch.trainable).nonzero().flatten().tolist()
            if tensor is not None and bad:
                return _token(name, float(tensor[bad[0]]), micro_batch, bad, updates)
    return (
        f"the loss or the gradient's norm is not finite at update {updates}, although every log-prob, entropy and "
        "advantage is; lower trainer.lr, look at the size of the rewards, or train in float32 (trainer.dtype)"
    )


def dump(folder: Path, rows: Sequence[Row], error: NonFiniteError) -> NonFiniteError:
    """Write a batch that holds a non-finite number, for ``torch.load``; the error, with the file's name added."""
    batch = [
        {
            "rollout": row.rollout.id,
            "group": row.group,
            "prompt_ids": torch.tensor(row.rollout.prompt.token_ids),
            "token_ids": torch.from_numpy(row.rollout.completion.token_ids.copy()),
            "logp_behavior": torch.from_numpy(row.rollout.completion.logp.copy()),
            "entropy_behavior": None if (told := row.rollout.completion.entropy) is None else torch.tensor(told),
            "version": torch.from_numpy(row.rollout.completion.version.copy()),
            "reward": row.rollout.reward,
            "advantage": row.advantage,
        }
        for row in rows
    ]
    try:
        torch.save({"error": str(error), "rows": batch}, folder / DUMP_FILE)
    except (OSError, RuntimeError) as failure:
        return NonFiniteError(f"{error}. The batch could not be written to {DUMP_FILE}: {failure}")
    return NonFiniteError(f"{error}. The batch is in {DUMP_FILE} of the run directory")


def _token(tensor: str, value: float, micro_batch: MicroBatch, bad: list[int], updates: int) -> str:
    at, row, start = bad[0], 0, 0
    while at >= start + len(micro_batch.rows[row].rollout.completion):
        start += len(micro_batch.rows[row].rollout.completion)
        row += 1
    rollout = micro_batch.rows[row].rollout
    return (
        f"{tensor} is {value} at token {at - start} of rollout {rollout.id!r} (id "
        f"{rollout.completion.token_ids[at - start]}, version {rollout.completion.version[at - start]}, update "
        f"{updates}); {len(bad)} such tokens in its micro-batch. No update was made. Lower trainer.lr, or start from "
        "weights that are finite"
    )
