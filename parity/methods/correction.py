"""Weights and masks for what the ratio against the anchor cannot see, and masks on the whole ratio."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from parity.batches import Batch
from parity.case import Case, Difference
from parity.formulas import Formula, aggregated, gain, mean_of_response
from parity.methods.clip import PPO
from parity.sides import Table, Tether, table, unscaled
from parity.trl_side import TRL
from parity.verl_side import OFF, Verl

TIS = {"name": "tis", "cap": 2.0}
ICEPOP = {"name": "icepop", "alpha": 0.5, "beta": 5.0}
BAND = {"name": "icepop", "form": "mask", "edge": "total"}
NO_CAP = 1e18


def _weighted(*corrections: Table, level: str = "token", scale: Callable[[Batch], float] = unscaled) -> Tether:
    """A clip against the anchor, and a weight from there to the behavior policy."""
    aggregation = "token-mean" if level == "token" else "seq-mean-token-mean"
    more = {"corrections": list(corrections)}
    return Tether(table(rule=PPO, proximal="anchor", level=level, aggregation=aggregation, **more), scale)


def _masked(aggregation: str, *masks: Table) -> Tether:
    """A clip against the behavior policy, and a mask."""
    return Tether(table(rule=PPO, aggregation=aggregation, corrections=list(masks)))


def capped(level: str, cap: float = 2.0) -> Table:
    """TIS at a level that is not the recipe's."""
    return {"name": "decoupled", "cap": NO_CAP, "w_max": cap, "level": level}


def _verl(**correction: Any) -> Verl:
    return Verl("vanilla", {"clip_ratio_c": OFF}, correction)


def _bypass(aggregation: str, option: str, bounds: str) -> Verl:
    """verl's rejection, by the ratio of the current policy to the rollout's."""
    actor = {"clip_ratio_c": OFF, "loss_agg_mode": aggregation}
    return Verl("bypass_mode", actor, {"rollout_is": None, "rollout_rs": option, "rollout_rs_threshold": bounds})


def _trl(mode: str, **more: Any) -> TRL:
    options = {key.replace("clip", "vllm_importance_sampling_clip"): value for key, value in more.items()}
    return TRL({"loss_type": "bnpo", "use_vllm": True, "vllm_importance_sampling_mode": mode, **options})


def _product_at_most_3(batch: Batch, logp: Tensor) -> Tensor:
    weight = torch.where(batch.mask, batch.anchor - batch.behavior, 0.0).sum(1, keepdim=True).exp()
    kept = torch.where(weight <= 3.0, weight, 0.0)
    return aggregated(-kept * gain(logp - batch.anchor, batch), batch, "token-mean")


def _mean_weight(batch: Batch, logp: Tensor) -> Tensor:
    """GSPO whose ratio is differentiated as a mean: every token gets the mean of its response's weights."""
    weight = (batch.anchor - batch.behavior).exp().clamp(max=2.0)
    ratio = mean_of_response(logp - batch.anchor, batch)
    return aggregated(-weight * gain(ratio, batch), batch, "seq-mean-token-mean")


def _left_by_the_mask(batch: Batch, logp: Tensor) -> Tensor:
    d = logp - batch.behavior
    left = batch.mask & (d.detach().abs() <= math.log(2.0))
    kept = torch.where(left, gain(d, batch), 0.0).sum(1) / left.sum(1).clamp(min=1)
    return -kept.sum() / len(kept)


def _survivors(batch: Batch) -> float:
    """Tokens by tokens whose ratio lies in the band that is its own reciprocal."""
    kept = batch.mask & ((batch.anchor - batch.behavior).abs() <= math.log(2.0))
    return float(batch.mask.sum() / kept.sum())


INVERTED = "verl bounds behavior / current, not current / behavior: 0.5 to 5 keeps the ratios 0.2 to 2."
UNCAPPED = {"name": "tis", "cap": 1e6}
WEIGHTS = (
    Case(method="TIS", ours=_weighted(TIS), theirs=_verl(rollout_is="token", rollout_is_threshold=2.0)),
    Case(method="TIS", ours=_weighted(TIS), theirs=_trl("token_truncate", clip_max=2.0)),
    Case(
        method="TIS, product of the response",
        ours=_weighted(capped("product")),
        theirs=_verl(rollout_is="sequence", rollout_is_threshold=2.0),
    ),
    Case(
        method="TIS, product of the response",
        ours=_weighted(capped("product")),
        theirs=_trl("sequence_truncate", clip_max=2.0),
    ),
    Case(
        method="IcePop",
        ours=_weighted(ICEPOP),
        theirs=_verl(rollout_is="token", rollout_is_threshold="0.5_5.0"),
    ),
    Case(method="IcePop", ours=_weighted(ICEPOP), theirs=_trl("token_mask", clip_min=0.5, clip_max=5.0)),
    Case(
        method="TIS, TRL's defaults",
        ours=_weighted({"name": "tis", "cap": 3.0}),
        theirs=TRL({"loss_type": "bnpo", "use_vllm": True}),
        difference=Difference(
            "TRL drops every response whose product of weights exceeds 3 and gives all others that product; tether's "
            "tis truncates token by token.",
            Formula(_product_at_most_3),
        ),
    ),
    Case(
        method="GSPO with TIS per token",
        ours=_weighted(capped("token"), level="sequence"),
        theirs=Verl(
            "gspo",
            {"loss_agg_mode": "seq-mean-token-mean"},
            {"rollout_is": "token", "rollout_is_threshold": 2.0},
        ),
    ),
    Case(
        method="GSPO with TIS per token",
        ours=_weighted(capped("token"), level="sequence"),
        theirs=TRL(
            {
                "loss_type": "grpo",
                "importance_sampling_level": "sequence",
                "use_vllm": True,
                "vllm_importance_sampling_mode": "token_truncate",
                "vllm_importance_sampling_clip_max": 2.0,
            }
        ),
        difference=Difference(
            "TRL differentiates the response's ratio as a mean, so that every token's gradient has the mean of the "
            "weights; in tether, as in verl, it has its own. The values are the same.",
            Formula(_mean_weight),
        ),
    ),
)
MASKS = (
    Case(
        method="OPSM",
        ours=_masked("token-mean", {"name": "opsm", "delta": 0.05}),
        theirs=TRL({"loss_type": "bnpo", "off_policy_mask_threshold": 0.05}),
    ),
    Case(
        method="token mask, bounds 0.5 and 2",
        ours=_masked("token-mean", {**BAND, "alpha": 0.5, "beta": 2.0}),
        theirs=_bypass("token-mean", "token_k1", "0.5_2.0"),
    ),
    Case(
        method="token mask, bounds 0.5 and 5",
        ours=_masked("token-mean", {**BAND, "alpha": 0.5, "beta": 5.0}),
        theirs=_bypass("token-mean", "token_k1", "0.5_5.0"),
        difference=Difference(INVERTED, _masked("token-mean", {**BAND, "alpha": 0.2, "beta": 2.0})),
    ),
    Case(
        method="token mask in decoupled mode",
        ours=_weighted(UNCAPPED, {**BAND, "edge": "weight", "alpha": 0.5, "beta": 2.0}),
        theirs=_verl(rollout_is="token", rollout_is_threshold=1e6, rollout_rs="token_k1", rollout_rs_threshold="0.5_2"),
        difference=Difference(
            "In decoupled mode verl divides by the tokens that its mask has left; tether by all, so that a mask does "
            "not raise the learning rate.",
            _weighted(UNCAPPED, {**BAND, "edge": "weight", "alpha": 0.5, "beta": 2.0}, scale=_survivors),
        ),
    ),
    Case(
        method="token mask, means of responses",
        ours=_masked("seq-mean-token-mean", {**BAND, "alpha": 0.5, "beta": 2.0}),
        theirs=_bypass("seq-mean-token-mean", "token_k1", "0.5_2.0"),
        difference=Difference(
            "verl divides a response by its tokens that the mask has left, tether by all of them.",
            Formula(_left_by_the_mask),
        ),
    ),
    Case(
        method="SeqClip",
        ours=_masked("token-mean", {"name": "seqclip", "alpha": 1 / 1.05, "beta": 1.05}),
        theirs=_bypass("token-mean", "seq_mean_k1", f"{1 / 1.05}_1.05"),
    ),
)
CASES = (*WEIGHTS, *MASKS)
