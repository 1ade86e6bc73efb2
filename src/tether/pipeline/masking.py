"""A masked token changes nothing: looked at once in every run, with the run's own model and algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from tether.core.advantage import DrGRPO
from tether.core.aggregation import Denominator
from tether.errors import SelfCheckError
from tether.pipeline.packing import MicroBatch, Step, pack
from tether.pipeline.routing import with_routes
from tether.pipeline.support import with_support
from tether.pipeline.trainer import Trainer
from tether.records import Group, Rollout
from tether.replay.routing import Routing
from tether.replay.support import Support

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest change of the loss, or of a parameter's norm, relative to the largest: what another order of sums does."""
SPREAD = 0.3
"""Nats by which behavior log-probs are moved, up and down, so that rules have something to clip."""
_FIELDS = ("logp_behavior", "advantage", "version", "trainable", "sequence", "group")


def check_masks(
    trainer: Trainer,
    rollouts: Sequence[Rollout],
    token_budget: int,
    routing: Routing | None = None,
    support: Support | None = None,
) -> None:
    """Raise ``SelfCheckError`` unless loss and gradient of a small step stay as they are when tokens that are not
    trained on hold NaN and huge numbers, compared with the step that does not have these tokens.

    The second half of every answer, and every fourth answer as a whole, is masked. No weight changes.
    """
    credited = tuple(replace(rollout, reward=float(number % 2)) for number, rollout in enumerate(rollouts))
    policy = trainer.policy
    step = pack(
        [Group(id="probe", index=0, rollouts=credited)],
        DrGRPO(single="raw"),
        token_budget=token_budget,
        pad_id=policy.loaded.pad_id,
        device=str(policy.device),
        sharing=trainer.sharing,
    )
    step = with_support(with_routes(step, routing, policy), support, policy)
    kept = [_kept(micro_batch) for micro_batch in step.micro_batches]
    pairs = [(m, keep) for m, keep in zip(step.micro_batches, kept, strict=True) if bool(keep.any())]
    counts = Denominator(
        num_tokens=sum(int(keep.sum()) for keep in kept),
        num_sequences=sum(len({*m.sequence[keep].tolist()}) for m, keep in pairs),
    )
    masked = Step(
        micro_batches=tuple(_poisoned(m, keep) for m, keep in zip(step.micro_batches, kept, strict=True)),
        denominator=counts,
        groups=step.groups,
    )
    without = Step(micro_batches=tuple(_without(*pair) for pair in pairs), denominator=counts, groups=step.groups)
    loss, norms = trainer.gradient_norms(without)
    masked_loss, masked_norms = trainer.gradient_norms(masked)
    largest, tolerance = max(norms), TOLERANCE[next(policy.model.parameters()).dtype]
    gap = float(np.abs(np.subtract(norms, masked_norms)).max())  # NaN, if there is one
    if not (abs(loss - masked_loss) <= tolerance * max(abs(loss), largest) and gap <= tolerance * largest):
        raise SelfCheckError(
            f"self-check 'masks' failed: with tokens that are not trained on the loss is {masked_loss:.6g} instead of "
            f"{loss:.6g}, and the norm of a parameter's gradient is off by {gap:.3g} of at most {largest:.3g}. A rule, "
            "correction or aggregation of this recipe lets them through: try algorithm.preset = 'grpo', then put back "
            "one choice after the other"
        )


def _kept(micro_batch: MicroBatch) -> Tensor:
    """Which tokens stay trainable."""
    pieces = []
    for row in micro_batch.rows:
        length = len(row.rollout.completion)
        is_whole = int(row.rollout.id.rpartition("/")[2]) % 4 == 3
        pieces.append(torch.arange(length) < (0 if is_whole else (length + 1) // 2))
    return torch.cat(pieces).to(micro_batch.trainable.device)


def _moved(micro_batch: MicroBatch) -> Tensor:
    logp = micro_batch.logp_behavior
    wave = torch.sin(torch.arange(len(logp), device=logp.device, dtype=logp.dtype))
    return (logp + SPREAD * wave).clamp(max=-1e-3)


def _poisoned(micro_batch: MicroBatch, keep: Tensor) -> MicroBatch:
    nan, entropy = torch.full_like(micro_batch.advantage, float("nan")), micro_batch.entropy_behavior
    return replace(
        micro_batch,
        trainable=keep,
        logp_behavior=torch.where(keep, _moved(micro_batch), nan),
        entropy_behavior=None if entropy is None else torch.where(keep, entropy, nan),
        logp_old=torch.where(keep, micro_batch.logp_behavior, nan),
        advantage=torch.where(keep, micro_batch.advantage, 1e30),
        version=torch.where(keep, micro_batch.version, -(10**9)),
    )


def _without(micro_batch: MicroBatch, keep: Tensor) -> MicroBatch:
    """Only the tokens that are kept; what the model reads is the same."""
    inputs = micro_batch.inputs
    picked = {name: getattr(micro_batch, name)[keep] for name in _FIELDS}
    picked["logp_behavior"], picked["logp_old"] = _moved(micro_batch)[keep], micro_batch.logp_behavior[keep]
    _, picked["sequence"] = torch.unique(picked["sequence"], return_inverse=True)
    return replace(
        micro_batch,
        inputs=inputs.only(keep),
        entropy_behavior=None if micro_batch.entropy_behavior is None else micro_batch.entropy_behavior[keep],
        is_cached_older=None,
        **picked,
    )
