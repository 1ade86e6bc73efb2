"""What it saves to put a group's completions behind one copy of their prompt, and how many of them a row.

Prints forward and backward of the same step for several numbers of completions a row, as a share of rows apart, in
CPU-seconds and each the median of interleaved rounds; then the number that the rule in ``models/sharing.py`` takes.
``--model FOLDER`` adds a model of your own.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date

import numpy as np
import torch
import transformers

from tether.core.advantage import GRPO
from tether.models.loading import LoadedModel, load_model
from tether.models.policy import Policy
from tether.pipeline.packing import Step, pack
from tether.records import Completion, Group, Prompt, Rollout

COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Fixed:
    """In the place of ``PromptSharing``: so many a row, whatever the lengths."""

    count: int

    def completions_per_row(self, prompt: int, completion: float) -> int:
        return self.count


def random_qwen3() -> LoadedModel:
    """Four layers of width 128; the words are those of tiny-moe."""
    loaded = load_model("tiny-moe")
    config = transformers.Qwen3Config(
        vocab_size=len(loaded.tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    return replace(loaded, model=transformers.Qwen3ForCausalLM(config), source="random Qwen3, h 128")


def groups_of(shape: tuple[int, int, int, int], vocabulary: int) -> list[Group]:
    """Random ids: so many groups of so many completions, which are half to once and a half of a length."""
    count, size, prompt, length = shape
    draw = np.random.default_rng(0)

    def rollout(name: str, asked: Prompt) -> Rollout:
        n = int(draw.integers(length // 2, length + length // 2 + 1))
        zeros = np.zeros(n, np.float32)
        ids = draw.integers(2, vocabulary, n).astype(np.int32)
        made = Completion(token_ids=ids, logp=zeros - 1, entropy=zeros, version=np.zeros(n, np.int32), finish="length")
        reward = float(draw.random())
        return Rollout(id=name, prompt=asked, completion=made, text="", reward=reward, started_s=0.0, finished_s=0.0)

    groups = []
    for g in range(count):
        asked = Prompt(
            id=f"p{g}", text="", token_ids=tuple(draw.integers(2, vocabulary, prompt).tolist()), reference=""
        )
        groups.append(Group(id=f"g{g}", index=g, rollouts=tuple(rollout(f"g{g}/{i}", asked) for i in range(size))))
    return groups


def seconds(policy: Policy, steps: Sequence[Step], rounds: int) -> list[float]:
    """CPU-seconds of forward and backward of each step."""
    taken: list[list[float]] = [[] for _ in steps]
    for number in range(rounds + 1):
        for step, times in zip(steps, taken, strict=True):
            start = time.process_time()
            for batch in step.micro_batches:
                policy(batch.inputs, temperature=1.0).logp.sum().backward()
            policy.model.zero_grad(set_to_none=True)
            if number:
                times.append(time.process_time() - start)
    return [statistics.median(times) for times in taken]


def compare(loaded: LoadedModel, shape: tuple[int, int, int, int], rounds: int) -> None:
    policy = Policy(loaded)
    if policy.sharing is None:
        raise SystemExit(f"{loaded.source} shares no prompts: {policy.apart_because}")
    _, size, prompt, length = shape
    groups = groups_of(shape, len(loaded.tokenizer))
    counts = [count for count in COUNTS if count <= size]
    sharings = [None, *map(Fixed, counts[1:])]
    steps = [
        pack(groups, GRPO(), token_budget=16384, pad_id=loaded.pad_id, device="cpu", sharing=s)  # type: ignore[arg-type]
        for s in sharings
    ]
    taken = seconds(policy, steps, rounds)
    ratios = "  ".join(f"{count}: {t / taken[0]:.2f}" for count, t in zip(counts, taken, strict=True))
    rule = min(size, policy.sharing.completions_per_row(prompt, float(length)))
    print(
        f"{loaded.source.split('/')[-1]:20s} prompt {prompt:3d}, completions ~{length:3d}, groups of {size}: "
        f"apart {taken[0]:.3f} s; a row {ratios}; the rule takes {rule}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a folder")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(date.today(), "forward and backward, share of rows apart, one thread")
    if asked.model:
        for size in (4, 8):
            compare(load_model(asked.model), (8, size, 40, 32), asked.rounds)
        return
    for loaded, shape in (
        (load_model("tiny-moe"), (8, 8, 15, 10)),
        (load_model("tiny-moe"), (8, 8, 15, 40)),
        (random_qwen3(), (8, 4, 40, 32)),
        (random_qwen3(), (8, 8, 40, 32)),
        (random_qwen3(), (4, 8, 20, 120)),
    ):
        compare(loaded, shape, asked.rounds)


if __name__ == "__main__":
    main()
