"""tether's losses against verl's at a million tokens: value, gradient and the clip fractions that both report.

    python -m parity.speed

verl works on padded ``[B, T]``: it is given a thousand responses of a thousand tokens without padding, its best case;
with padding it does the same work for fewer tokens. tether is given the same tokens end to end, and measures what its
rules need. Settings are translated as ``parity/methods`` does; where verl's method needs weights or a mask from its
trainer, making them is counted, as tether makes them inside its loss. Work is done in turns; a ratio is the median over
the turns of CPU seconds.
"""

from __future__ import annotations

import os
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from typing import Any, NamedTuple

import torch
from torch import Tensor

from parity.batches import Batch
from parity.verl_side import OFF, Verl
from tether import Algorithm, PolicyTokens, measure_scope, policy_loss
from tether.config.bind import bind
from tether.config.presets import preset

RESPONSES, TOKENS = 1000, 1000
SPREAD = 0.05
"""Standard deviation of the log-ratios: that of a stale batch."""
ROUNDS = 5
GOAL = 1.0
SEQUENCE_MEAN = {"loss_agg_mode": "seq-mean-token-mean"}
CLIP = {**SEQUENCE_MEAN, "clip_ratio_c": OFF}
REINFORCE = {"loss_type": "reinforce", "rollout_is": "token", "rollout_is_threshold": 5.0}
KL = {"use_kl_loss": True, "kl_loss_type": "low_var_kl", "kl_loss_coef": 1e-3}


def _tis(level: str) -> Verl:
    return Verl("vanilla", CLIP, {"rollout_is": level, "rollout_is_threshold": 2.0})


def _dppo(name: str, delta: float) -> Verl:
    return Verl(name, {**SEQUENCE_MEAN, "clip_ratio_low": delta, "clip_ratio_high": delta, "clip_ratio_c": 20.0})


METHODS: Mapping[str, Verl] = {
    "grpo": Verl("vanilla", CLIP),
    "paper/grpo": Verl("vanilla", {**CLIP, **KL}),
    "dual-clip": Verl("vanilla", {**SEQUENCE_MEAN, "clip_ratio_c": 3.0}),
    "dapo": Verl("vanilla", {"loss_agg_mode": "token-mean", "clip_ratio_high": 0.28, "clip_ratio_c": OFF}),
    "dr-grpo": Verl("vanilla", {**CLIP, "loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": TOKENS}),
    "gspo": Verl("gspo", SEQUENCE_MEAN),
    "gmpo": Verl("geo_mean", {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}),
    "sapo": Verl("sapo", SEQUENCE_MEAN),
    "cispo": Verl("cispo", {**SEQUENCE_MEAN, "clip_ratio_low": 1.0}),
    "dppo": _dppo("dppo_tv", 0.15),
    "dppo-kl": _dppo("dppo_kl", 0.05),
    "grpo-tis": Verl("bypass_mode", SEQUENCE_MEAN, REINFORCE),
    "tis": _tis("token"),
    "tis-sequence": _tis("sequence"),
}
"""Presets of tether's for which verl has the loss, with its settings."""


class Seconds(NamedTuple):
    """Of the CPU, all threads of this process."""

    tether: float
    verl: float


def batch() -> Batch:
    """Random, without padding, all trained on."""
    draw = torch.Generator().manual_seed(0)
    shape = (RESPONSES, TOKENS)

    def near(x: Tensor, spread: float) -> Tensor:
        return (x + spread * torch.randn(shape, generator=draw)).clamp(max=0.0)

    behavior = -3 * torch.rand(shape, generator=draw)
    return Batch(
        logp=near(behavior, SPREAD),
        behavior=behavior,
        anchor=near(behavior, SPREAD),
        reference=near(behavior, SPREAD),
        advantage=torch.randn(RESPONSES, generator=draw),
        mask=torch.ones(shape, dtype=torch.bool),
        length=torch.full((RESPONSES,), TOKENS),
    )


def ours(name: str, given: Batch) -> Callable[[], None]:
    """A preset of tether's."""
    table: dict[str, Any] = preset(name)
    if table["aggregation"]["name"] == "seq-mean-token-sum-norm":
        table["aggregation"]["horizon"] = TOKENS
    algorithm: Algorithm = bind(Algorithm, table, "algorithm")
    fields = {"logp_anchor": algorithm.proximal.inputs, "logp_reference": ("logp_reference",) if algorithm.kl else ()}
    unasked = {field: None for field, asked in fields.items() if field not in asked}
    tokens = replace(given.tokens, **unasked)
    denominator, logp = given.denominator, given.logp.flatten().clone().requires_grad_()

    def work() -> None:
        logp.grad = None
        known = replace(tokens, logp_proximal=algorithm.proximal(tokens, logp.detach()))
        stats = measure_scope(algorithm, [(logp, known)] if any(t.needs for t in algorithm.traits) else [])
        terms = policy_loss(PolicyTokens(logp), known, algorithm, stats, denominator)
        terms.active.sum().item(), (terms.outward & ~terms.active).sum().item()
        terms.loss.backward()

    return work


def theirs(side: Verl, given: Batch) -> Callable[[], None]:
    """verl's loss, with the correction that its trainer makes."""
    loss, logp = side.prepared(given), given.logp.clone().requires_grad_()

    def work() -> None:
        logp.grad = None
        loss(logp).backward()

    return work


def seconds(work: Callable[[], None]) -> float:
    """Of the CPU."""
    started = time.process_time()
    work()
    return time.process_time() - started


def compare(name: str, side: Verl, given: Batch) -> list[Seconds]:
    """In turns, after one to warm up."""
    mine, other = ours(name, given), theirs(side, given)
    turns = [Seconds(seconds(mine), seconds(other)) for _ in range(1 + ROUNDS)]
    return turns[1:]


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    given = batch()
    print(
        f"{date.today()}, load {os.getloadavg()[0]:.1f}, torch {torch.__version__}, "
        f"{torch.get_num_threads()} thread(s)\n"
        f"{RESPONSES:,} x {TOKENS:,} tokens without padding, CPU ms, medians of {ROUNDS} turns"
    )
    print(f"{'preset':14s} {'verl':>12s} {'tether ms':>10s} {'verl ms':>8s} {'tether/verl':>12s}")
    for name, side in METHODS.items():
        turns = compare(name, side, given)
        mine, other = (1e3 * statistics.median(column) for column in zip(*turns, strict=True))
        found = statistics.median(turn.tether / turn.verl for turn in turns)
        verdict = "met" if found < GOAL else "missed"
        print(f"{name:14s} {side.name:>12s} {mine:10.1f} {other:8.1f} {found:11.2f}x  goal < {GOAL:.0f}x: {verdict}")


if __name__ == "__main__":
    main()
