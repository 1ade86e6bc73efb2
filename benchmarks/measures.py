"""What the measures of a step cost beside its loss, and beside the step of a real model that they look at.

All of them at once, as the trainer asks: mismatch by token and by response, fates by sign, direction and staleness, the
rule's marks, weights of corrections. Against what is measured for the loss, its value and its gradient under ``grpo``
and ``sat-gspo``, at a million tokens and at a usual batch; staleness is 0 to 8, rising along every response. Then, on
the quickstart's batch, against forward and backward of tiny-moe, which is what a user pays for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from _measure import Work, in_turns, median, print_machine, ratio, verdict
from loss import RESPONSE, batch
from scope import quickstart_groups
from torch import Tensor

from tether.config.bind import bind
from tether.config.presets import preset
from tether.config.recipe import load
from tether.core.aggregation import Denominator
from tether.core.algorithm import Algorithm
from tether.core.loss import LossTerms, measure_scope, policy_loss
from tether.core.measures import observed
from tether.core.rule import PolicyTokens
from tether.core.seen import spans
from tether.core.tokens import TokenBatch
from tether.models.loading import load_model
from tether.models.policy import Policy
from tether.pipeline.packing import pack

GOAL = 0.1
"""Of the loss, or of the model's passes."""
SIZES = {1_000_000: 15, 16_384: 101}
"""Tokens, and turns."""
PRESETS = ("grpo", "sat-gspo")
STALE = 9
"""Staleness is 0 to 8."""
TINY_ROUNDS = 21


@dataclass(frozen=True)
class Subject:
    """A step of one micro-batch under a preset."""

    algorithm: Algorithm
    tokens: TokenBatch
    logp: Tensor

    def terms(self) -> LossTerms:
        """What is measured for the loss, and the loss."""
        stats = measure_scope(self.algorithm, [(self.logp, self.tokens)])
        counts = Denominator(num_tokens=len(self.tokens), num_sequences=int(self.tokens.sequence[-1]) + 1)
        return policy_loss(PolicyTokens(self.logp), self.tokens, self.algorithm, stats, counts)

    def loss(self) -> None:
        """The same and its gradient."""
        self.logp.grad = None
        self.terms().loss.backward()

    def measures(self) -> Work:
        """What the trainer asks about the step, of a loss that is there."""
        terms, logp = self.terms(), self.logp.detach()
        return lambda: observed([(logp, self.tokens)], [terms], spans([self.tokens]))


def algorithm_of(name: str) -> Algorithm:
    return bind(Algorithm, preset(name), "algorithm")


def compare(size: int, rounds: int) -> None:
    """The measures beside the loss that they look at."""
    plain, logp = batch(size)
    stale = STALE * (torch.arange(size) % RESPONSE) // RESPONSE
    print(f"{size:,} tokens, medians of {rounds} turns")
    for name in PRESETS:
        subject = Subject(algorithm_of(name), replace(plain, staleness=stale), logp)
        costs = in_turns({"loss": subject.loss, "measures": subject.measures()}, rounds)
        print(f"  {name:9s} measurement, loss, gradient {median(costs['loss'])}")
        print(f"  {'':9s} all measures                {median(costs['measures'])}")
        print(f"  {'':9s} measures / loss             {verdict(ratio(costs['measures'], costs['loss']), GOAL)}")


def compare_model() -> None:
    """The measures beside forward and backward of tiny-moe."""
    recipe, loaded = load("quickstart"), load_model("tiny-moe")
    policy = Policy(loaded)
    step = pack(
        quickstart_groups(recipe, loaded),
        recipe.algorithm.advantage,
        token_budget=recipe.trainer.token_budget,
        pad_id=loaded.pad_id,
        device="cpu",
        sharing=policy.sharing,
    )
    (micro_batch,) = step.micro_batches

    def passes() -> Tensor:
        logp = policy(micro_batch.inputs, temperature=1.0, entropy="detached").logp
        logp.sum().backward()
        return logp.detach()

    tokens = TokenBatch(
        logp_behavior=micro_batch.logp_behavior,
        logp_proximal=micro_batch.logp_behavior,
        advantage=micro_batch.advantage,
        trainable=micro_batch.trainable,
        sequence=micro_batch.sequence,
        group=micro_batch.group,
        staleness=torch.arange(len(micro_batch.trainable)) % STALE,
    )
    subject = Subject(algorithm_of("sat-gspo"), tokens, passes().requires_grad_())
    costs = in_turns({"model": passes, "loss": subject.loss, "measures": subject.measures()}, TINY_ROUNDS)
    print(f"the quickstart's batch, {len(tokens):,} tokens, sat-gspo, medians of {TINY_ROUNDS} turns")
    print(f"  tiny-moe, forward and backward        {median(costs['model'])}")
    print(f"  measurement, loss, gradient           {median(costs['loss'])}")
    print(f"  all measures                          {median(costs['measures'])}")
    print(f"  measures / forward and backward       {verdict(ratio(costs['measures'], costs['model']), GOAL)}")


def main() -> None:
    print_machine()
    for size, rounds in SIZES.items():
        compare(size, rounds)
    compare_model()


if __name__ == "__main__":
    main()
