"""TRL's losses: the methods of its ``GRPOTrainer``, run on an object that has only what they read."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer

from parity.batches import Batch
from parity.sides import shown


class _OneProcess:
    """An accelerator of one process."""

    num_processes = 1
    sync_gradients = True

    def gather(self, x: Tensor) -> Tensor:
        return x

    def reduce(self, x: Tensor, reduction: str) -> Tensor:
        return x


@dataclass(frozen=True)
class TRL:
    """``GRPOTrainer._compute_loss`` with the model's log-probabilities handed to it.

    ``config`` are fields of TRL's ``GRPOConfig``, as its user sets them. With ``use_vllm`` the ratio is taken against
    ``old_per_token_logps`` of the trainer, and vLLM's are corrected for as the mode says; without it the ratio is taken
    against those of the rollout.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    trainer: type[GRPOTrainer] = GRPOTrainer
    arguments: type[GRPOConfig] = GRPOConfig

    @property
    def settings(self) -> str:
        """Settings that were given."""
        return ", ".join(
            filter(None, ["" if self.trainer is GRPOTrainer else self.trainer.__name__, shown(self.config)])
        )

    def loss(self, batch: Batch, logp: Tensor) -> Tensor:
        """The loss of a step of one micro-batch, of which the batch is all."""
        trainer = self._trainer(logp)
        mask = batch.mask.long()
        inside = batch.inside.long()
        ids = torch.zeros_like(mask)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": torch.ones_like(ids[:, :1]),
            "completion_ids": ids,
            "completion_mask": inside,
            "tool_mask": mask,
            "advantages": batch.advantage,
            "num_items_in_batch": mask.sum(),
            "old_per_token_logps": batch.anchor if trainer.use_vllm else batch.behavior,
            "sampling_per_token_logps": batch.behavior,
            "ref_per_token_logps": batch.reference,
        }
        if trainer.use_vllm:
            inputs["importance_sampling_ratio"] = importance_sampling_ratio(trainer, inputs)
        loss: Tensor = self.trainer._compute_loss(trainer, None, inputs)
        return loss

    def _trainer(self, logp: Tensor) -> Any:
        args = self.arguments(bf16=False, use_cpu=True, report_to="none", output_dir="unused", **self.config)
        return SimpleNamespace(
            args=args,
            loss_type=args.loss_type,
            importance_sampling_level=args.importance_sampling_level,
            epsilon_low=args.epsilon,
            epsilon_high=args.epsilon if args.epsilon_high is None else args.epsilon_high,
            beta=args.beta,
            off_policy_mask_threshold=args.off_policy_mask_threshold,
            max_completion_length=args.max_completion_length,
            top_entropy_quantile=args.top_entropy_quantile,
            use_vllm=args.use_vllm,
            vllm_importance_sampling_correction=args.vllm_importance_sampling_correction,
            vllm_importance_sampling_mode=args.vllm_importance_sampling_mode,
            vllm_importance_sampling_clip_min=args.vllm_importance_sampling_clip_min,
            vllm_importance_sampling_clip_max=args.vllm_importance_sampling_clip_max,
            aux_loss_enabled=False,
            _entropy_bonus_enabled=False,
            model=SimpleNamespace(training=True),
            accelerator=_OneProcess(),
            current_gradient_accumulation_steps=1,
            _metrics={"train": defaultdict(list)},
            get_off_policy_mask=GRPOTrainer.get_off_policy_mask,
            get_gamma_weights=GRPOTrainer.get_gamma_weights,
            _get_per_token_logps_and_entropies=lambda *_, **__: (logp, torch.zeros_like(logp), None),
        )


def importance_sampling_ratio(trainer: Any, inputs: Mapping[str, Tensor]) -> Tensor:
    """What ``_generate_and_score_completions`` makes of vLLM's log-probabilities: its own statements, run here."""
    names = {
        "self": trainer,
        "completion_mask": inputs["completion_mask"],
        "tool_mask": inputs["tool_mask"],
        "old_per_token_logps": inputs["old_per_token_logps"],
        "sampling_per_token_logps": inputs["sampling_per_token_logps"],
    }
    ratio: Tensor = _run("vllm_importance_sampling_ratio", names)["vllm_importance_sampling_ratio"]
    return ratio


def advantages(rewards: Tensor, group: int, scale_rewards: str) -> Tensor:
    """What the same method makes of ``rewards [B]``, groups of ``group`` in a row."""
    trainer = SimpleNamespace(
        multi_objective_aggregation="sum_then_normalize", reward_weights=torch.ones(1), scale_rewards=scale_rewards
    )
    names = {
        "self": trainer,
        "rewards_per_func": rewards[:, None],
        "unscorable_mask": torch.zeros_like(rewards, dtype=torch.bool),
        "num_generations": group,
        "device": rewards.device,
    }
    found: Tensor = _run("mean_grouped_rewards", names)["advantages"]
    return found


def _run(assigned: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the outermost ``if`` that assigns a name in the method: the method itself generates text as well."""
    source = textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions))
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.If) and _assigns(node, assigned)]
    module = ast.Module(body=[nodes[0]], type_ignores=[])  # walk goes from the outside in
    scope = {**vars(grpo_trainer), **names}
    exec(compile(module, grpo_trainer.__file__, "exec"), scope)
    return scope


def _assigns(tree: ast.If, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store) for node in ast.walk(tree)
    )
