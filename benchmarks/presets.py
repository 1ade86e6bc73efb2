"""Every preset at a million tokens, value and gradient, against plain PPO (``grpo``) and against the memory it moves.

``loss`` is the proximal's arithmetic, ``policy_loss`` and the backward pass; ``measure`` is what is measured over the
scope before it, and for a step size before the update. A preset gets the fields that it asks for and no others, as in a
run. Presets that replay experts have the loss of those that do not, and are left out.

The floor is the least that plain PPO must move through memory: every input read once, one gradient written once, at the
bandwidth at which this machine copies. No loss made of tensor operations reaches it: each reads and writes on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from _measure import Cost, cost_of, median, print_machine, ratio
from loss import RESPONSE, SPREAD, batch
from torch import Tensor

from tether.config.bind import bind
from tether.config.presets import PRESETS, preset
from tether.core.aggregation import Denominator
from tether.core.algorithm import Algorithm
from tether.core.loss import measure_scope, measure_traits, policy_loss
from tether.core.memory import EdgeStatistics
from tether.core.ratio import ENDS
from tether.core.rule import PolicyTokens
from tether.core.tokens import TokenBatch

GOAL = 2.0
"""Times plain PPO, of presets that neither measure a statistic nor read the engine's most probable tokens."""
SIZE, ROUNDS = 1_000_000, 5
TOP_K = 20
PLAIN = "grpo"
READ_ONCE = ("logp_behavior", "advantage", "trainable", "sequence")
"""Of the tokens, what plain PPO reads beside the current log-probabilities."""
COPIED = 64 * 2**20
"""Bytes of the copy that shows the bandwidth: far more than a cache holds."""
GIVEN: Mapping[str, Mapping[str, Any]] = {
    "estr": {"corrections": [{"name": "estr", "threshold": 0.1}]},
    "sat-absolute": {"rule": {"name": "sat", "scale": {"name": "absolute", "value": 0.1}}},
}
"""What a preset leaves to its user."""


@dataclass(frozen=True)
class Subject:
    """A preset with the tokens that it asks for."""

    algorithm: Algorithm
    tokens: TokenBatch
    policy: PolicyTokens

    @property
    def why_more(self) -> str:
        """Why it may take more than the goal; empty if nothing excuses it."""
        if self.policy.top_k is not None:
            return f"reads {TOP_K} more tokens"
        needs = [need for traits in self.algorithm.traits for need in traits.needs]
        return "measures a statistic" if needs or self.algorithm.step_size else ""

    @property
    def beside(self) -> str:
        """What the preset adds to its rule."""
        return " with a KL penalty beside" if self.algorithm.kl is not None else ""

    def measure(self) -> EdgeStatistics:
        """What is measured over the scope, here the one micro-batch; and what the step size is made of."""
        parts = [(self.policy.logp.detach(), self.tokens)]
        if (step_size := self.algorithm.step_size) is not None:
            measured = measure_traits([step_size.traits], self.algorithm.level, parts)
            step_size(measured[step_size.traits.measured(self.algorithm.level)])
        return measure_scope(self.algorithm, parts)

    def loss(self, stats: EdgeStatistics, denominator: Denominator) -> None:
        """Value and gradient."""
        self.policy.logp.grad = None
        proximal = self.algorithm.proximal(self.tokens, self.policy.logp.detach())
        tokens = replace(self.tokens, logp_proximal=proximal)
        policy_loss(self.policy, tokens, self.algorithm, stats, denominator).loss.backward()

    def turn(self, denominator: Denominator) -> tuple[Cost, Cost]:
        """Of both, in this order."""
        found: list[EdgeStatistics] = []
        measured = cost_of(lambda: found.append(self.measure()))
        return measured, cost_of(lambda: self.loss(found[0], denominator))


def algorithm_of(name: str) -> Algorithm:
    """A preset's algorithm, with what a recipe would add."""
    table = {**preset(name), **GIVEN.get(name, {})}
    if table["aggregation"]["name"] == "seq-mean-token-sum-norm":
        table["aggregation"]["horizon"] = RESPONSE
    return bind(Algorithm, table, "algorithm")


def fields_of(algorithm: Algorithm) -> set[str]:
    """Optional fields of tokens and policy that it asks for."""
    asked = {*algorithm.proximal.inputs, *(("logp_reference",) if algorithm.kl else ())}
    for traits in algorithm.traits:
        edges = (traits.reads, traits.measures or traits.reads)
        asked |= {*traits.inputs, *(("logp_old",) if any("old" in ENDS[edge] for edge in edges) else ())}
    return asked


def optional(tokens: TokenBatch) -> dict[str, Tensor]:
    """Every optional field of a ``TokenBatch``."""
    draw = torch.Generator().manual_seed(1)

    def near(x: Tensor) -> Tensor:
        return (x + SPREAD * torch.randn(x.shape, generator=draw)).clamp(max=0.0)

    logits = 3 * torch.randn(SIZE, TOP_K, generator=draw)
    others = logits.log_softmax(1) + torch.log1p(-tokens.logp_behavior.exp().clamp(max=0.99))[:, None] - 0.01
    return {
        **{f"logp_{name}": near(tokens.logp_behavior) for name in ("anchor", "old", "average", "reference")},
        "entropy_behavior": torch.rand(SIZE, generator=draw),
        "turn": torch.arange(SIZE) % RESPONSE // 200,
        "top_k_behavior": others,
    }


def subjects() -> dict[str, Subject]:
    """All presets that differ in their loss."""
    plain, logp = batch(SIZE)
    plain = replace(plain, staleness=torch.arange(SIZE) // RESPONSE % 16)
    fields = optional(plain)
    made = {}
    for name in PRESETS:
        if preset(name).get("replay"):
            continue
        algorithm = algorithm_of(name)
        asked = fields_of(algorithm)
        tokens = replace(plain, **{field: x for field, x in fields.items() if field in asked})
        top_k = fields["top_k_behavior"] - 0.01 if "top_k" in asked else None
        entropy = fields["entropy_behavior"] if "entropy" in asked or algorithm.entropy else None
        made[name] = Subject(algorithm, tokens, PolicyTokens(logp, entropy=entropy, top_k=top_k))
    return made


def floor_of(plain: Subject) -> tuple[float, float, int]:
    """Seconds, bytes a second, bytes of the memory floor."""
    source, target = torch.ones(COPIED // 4), torch.zeros(COPIED // 4)
    per_s = 2 * COPIED / min(cost_of(lambda: target.copy_(source)).cpu_s for _ in range(9))
    logp = plain.policy.logp
    moved = 2 * logp.nbytes + sum(getattr(plain.tokens, name).nbytes for name in READ_ONCE)
    return moved / per_s, per_s, moved


def main() -> None:
    print_machine()
    found = subjects()
    denominator = Denominator(num_tokens=SIZE, num_sequences=int(found[PLAIN].tokens.sequence[-1]) + 1)
    floor_s, per_s, moved = floor_of(found[PLAIN])
    rows = []
    floors: list[Cost] = []
    for name, subject in found.items():
        subject.turn(denominator)
        turns = [(found[PLAIN].turn(denominator)[1], *subject.turn(denominator)) for _ in range(ROUNDS)]
        plain, measure, loss = zip(*turns, strict=True)
        floors += plain
        both = [Cost(*map(sum, zip(one, other, strict=True))) for one, other in zip(measure, loss, strict=True)]
        rows.append((ratio(both, plain), ratio(loss, plain), name, median(loss), median(measure)))
    print(f"{SIZE:,} tokens, value and gradient, medians of {ROUNDS} turns in CPU ms; each beside {PLAIN} in turns")
    print(f"memory floor of {PLAIN}: {moved / 1e6:.0f} MB at {per_s / 1e9:.1f} GB/s, {floor_s * 1e3:.1f} ms")
    print(f"{PLAIN}: {median(floors).cpu_s * 1e3:.1f} ms, {median(floors).cpu_s / floor_s:.1f}x the floor")
    print(f"{'preset':22s} {'loss':>7s} {'measure':>8s} {'x floor':>8s} {'loss/' + PLAIN:>10s} {'all/' + PLAIN:>9s}")
    for both_x, loss_x, name, loss_ms, measure_ms in sorted(rows):
        all_s = loss_ms.cpu_s + measure_ms.cpu_s
        print(
            f"{name:22s} {loss_ms.cpu_s * 1e3:7.1f} {measure_ms.cpu_s * 1e3:8.1f} {all_s / floor_s:8.1f} "
            f"{loss_x:10.2f} {both_x:9.2f}  {verdict_of(both_x, found[name])}"
        )


def verdict_of(value: float, subject: Subject) -> str:
    if value <= GOAL:
        return "met"
    return f"no goal: {subject.why_more}" if subject.why_more else f"goal <= {GOAL:.0f}x missed{subject.beside}"


if __name__ == "__main__":
    main()
