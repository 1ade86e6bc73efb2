"""What a whole-step statistic costs: one forward without gradient, against the forward and backward of the same step.

Prints the ratio for a step of one micro-batch (where the step's own forward serves) and of several. The exact quantile
itself: ``quantile.py``.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date

import torch

from tether.config.recipe import Recipe, load
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.pipeline.packing import pack
from tether.pipeline.rollouts import Asked, Reader, Sampling, ask
from tether.pipeline.trainer import Trainer
from tether.placement.inline import FreeClock, Inline
from tether.records import Completion, Group, Rollout
from tether.registry import ENGINES, REWARDS
from tether.rewards.composition import alone
from tether.tasks.prompts import PromptSource
from tether.weights.memory import MemoryStore

ROUNDS = 7


def median_seconds(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def quickstart_groups(recipe: Recipe, loaded: LoadedModel) -> list[Group]:
    """What a step of the quickstart is packed from: completions of eight prompts, rewarded."""
    store = MemoryStore("bfloat16")
    engine = ENGINES.build("torch").open("tiny-moe", store=store, clock=FreeClock(), device="cpu")
    source = PromptSource(
        ("arithmetic", recipe.task), loaded.tokenizer, eos_ids=loaded.eos_ids, room=256, split="train", seed=0
    )
    asked = [ask(i, source(i), Sampling(seed=0, group_size=8, temperature=1.0, max_tokens=32), 0.0) for i in range(8)]
    reader = Reader(loaded.tokenizer.decode, frozenset(loaded.eos_ids))

    async def sample() -> list:  # type: ignore[type-arg]
        await engine.load(store.publish(0, loaded.model.state_dict()))
        return await engine.answer([request for one in asked for request in one.requests])

    completions = Inline().run(sample())
    return [group_of(one, reader, completions[8 * i : 8 * i + 8]) for i, one in enumerate(asked)]


def group_of(asked: Asked, reader: Reader, completions: Sequence[Completion]) -> Group:
    """A judged group; times play no part."""
    rollouts, rewards = [], alone(REWARDS.build("exact"), "exact")
    for request, completion in zip(asked.requests, completions, strict=True):
        answer = reader.answer(request.id, completion)
        rollouts.append(
            Rollout(
                id=request.id,
                prompt=asked.prompt,
                completion=completion,
                text=answer.text,
                reward=rewards(asked.prompt, answer).reward,
                started_s=0.0,
                finished_s=0.0,
            )
        )
    return Group(id=asked.id, index=asked.index, rollouts=tuple(rollouts))


def step_times() -> None:
    recipe = load("quickstart")
    loaded = load_model("tiny-moe")
    groups = quickstart_groups(recipe, loaded)
    for budget in (16384, 512):
        step = pack(groups, recipe.algorithm.advantage, token_budget=budget, pad_id=loaded.pad_id, device="cpu")
        seconds = {}
        for measured in ("step", "micro-batch"):
            trainer = Trainer(
                Policy(load_model("tiny-moe")),
                replace(recipe.algorithm, measure=measured),
                replace(recipe.trainer, lr=1e-9),
                reference=None,
                temperature=1.0,
                limits=(1000, 1000),
            )
            seconds[measured] = median_seconds(lambda trainer=trainer, step=step: trainer.step(step))  # type: ignore[misc]
        print(
            f"{len(step.micro_batches):2d} micro-batches of {step.denominator.num_tokens} tokens: scope step "
            f"{seconds['step'] * 1e3:.0f} ms, scope micro-batch {seconds['micro-batch'] * 1e3:.0f} ms, "
            f"ratio {seconds['step'] / seconds['micro-batch']:.2f}"
        )


if __name__ == "__main__":
    print(f"{date.today()}, {platform.processor() or platform.machine()}, {torch.get_num_threads()} torch threads")
    step_times()
