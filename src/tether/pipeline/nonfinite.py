"""Finding the first number of a step that is not one: tensor, rollout, token, versions, and what to try."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from tether.core.loss import LossTerms
from tether.pipeline.packing import MicroBatch


def explain(
    micro_batches: Sequence[MicroBatch], logps: Sequence[Float[Tensor, "T"]], terms: Sequence[LossTerms], updates: int
) -> str:
    """A message that names the first non-finite number of a step that has one."""
    for micro_batch, logp in zip(micro_batches, logps, strict=True):
        bad = (~logp.isfinite() & micro_batch.trainable).nonzero().flatten().tolist()
        if bad:
            return _token("logp of the trainer", float(logp[bad[0]]), micro_batch, bad, updates)
    for micro_batch, term in zip(micro_batches, terms, strict=True):
        if not bool(term.loss.isfinite()):
            ids = ", ".join(row.rollout.id for row in micro_batch.rows[:8])
            return (
                f"the loss is {float(term.loss)} at update {updates} in the micro-batch of rollouts {ids}, although "
                "every log-probability is finite; look at advantages and at log-probs of the reference model"
            )
    return (
        f"the gradient's norm is not finite at update {updates}, although the loss is; lower trainer.lr, or train in "
        "float32 (trainer.dtype)"
    )


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
