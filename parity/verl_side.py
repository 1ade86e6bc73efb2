"""verl's losses, called as its worker calls them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from parity.batches import Batch
from parity.sides import shown

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.rollout_corr_helper import (
        SUPPORTED_ROLLOUT_RS_OPTIONS,
        compute_rollout_correction_and_rejection_mask,
    )
    from verl.workers.config import ActorConfig, PolicyLossConfig


__all__ = ["OFF", "SUPPORTED_ROLLOUT_RS_OPTIONS", "Verl", "core_algos"]
OFF = 1e9
"""A dual clip that never cuts: verl has no way to leave it out."""


@dataclass(frozen=True)
class Verl:
    """A registered policy loss and what surrounds it in ``verl.workers.utils.losses.ppo_loss``.

    ``actor`` are fields of verl's ``ActorConfig``, as its user sets them. With ``rollout_correction`` the ratio is
    taken against ``old_log_probs`` and the correction comes from ``rollout_log_probs`` (decoupled mode); without it,
    and in the loss ``bypass_mode``, ``old_log_probs`` are those of the rollout.
    """

    name: str
    actor: Mapping[str, Any] = field(default_factory=dict)
    rollout_correction: Mapping[str, Any] | None = None

    @property
    def settings(self) -> str:
        """Settings that were given."""
        given = dict(self.actor) | dict(self.rollout_correction or {})
        return shown({"loss_mode": self.name, **given})

    def loss(self, batch: Batch, logp: Tensor) -> Tensor:
        """Policy loss, and the KL loss if it is used."""
        correction = RolloutCorrectionConfig(**(self.rollout_correction or {}))
        policy_loss = PolicyLossConfig(loss_mode=self.name, rollout_correction=correction)
        config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=policy_loss, **self.actor)
        old, mask, weights = self._corrected(batch)
        config.global_batch_info.update(  # counts as verl's engines and trainer hand them to the worker
            dp_size=1,
            batch_num_tokens=int(mask.sum()),
            global_batch_size=len(mask),
            loss_scale_factor=config.loss_scale_factor,
        )
        loss, _ = core_algos.get_policy_loss_fn(self.name)(
            old_log_prob=old,
            log_prob=logp,
            advantages=batch.everywhere,
            response_mask=mask,
            loss_agg_mode=config.loss_agg_mode,
            config=config,
            rollout_is_weights=weights,
        )
        if config.use_kl_loss:
            estimate = core_algos.kl_penalty(logp, batch.reference, config.kl_loss_type)
            penalty = core_algos.agg_loss(estimate, mask, config.loss_agg_mode, **config.global_batch_info)
            loss = loss + config.kl_loss_coef * penalty
        return loss

    def _corrected(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Denominator of the ratio, mask and weights."""
        if self.rollout_correction is None or self.name == "bypass_mode":
            return batch.behavior, batch.mask, None
        weights, mask, _ = compute_rollout_correction_and_rejection_mask(
            old_log_prob=batch.anchor,
            rollout_log_prob=batch.behavior,
            response_mask=batch.mask.float(),
            **self.rollout_correction,
        )
        return batch.anchor, mask.to(torch.bool), None if weights is None else weights.batch["rollout_is_weights"]
