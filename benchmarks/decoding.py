"""Tokens a second of the embedded engine, with what the forward passes alone allow; engines.py has it against others.

``floor`` is what the forward passes alone allow, measured inside the same runs. Rows of group 8 are eight completions a
prompt. Then requests asked one by one, as a run asks them, against the same ones answered in lots: all at once, with as
many rows; and more than there are rows, of limits that differ, so that rows join and leave all the time. The last block
measures the parts a decode path is made of, each against what else it could be.

    tether model smollm2 --out smollm2          # once
    python benchmarks/decoding.py               # or --model FOLDER, --dtype float32, --rounds N
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from _measure import print_machine
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

from tether.engines.attention import grouped_attention
from tether.engines.sampling import sample
from tether.engines.torch import Torch, TorchEngine
from tether.models.loading import load_model
from tether.placement.inline import FreeClock
from tether.ports import GenerationRequest
from tether.records import Completion
from tether.weights.memory import MemoryStore

ROWS = (1, 16, 64)
PROMPT, NEW, GROUP = 40, 32, 8
Case = tuple[int, int, tuple[int, ...]]
CASES: tuple[Case, ...] = ((64, 64, (NEW,)), (512, 512, (NEW,)), (256, 64, (NEW,)), (256, 64, (4, 8, 16, 48)))
"""Requests, rows, and the limits that they have in turn."""
SHORT = (CASES[0], CASES[-1])
"""For a model that takes minutes for the others."""


@dataclass(frozen=True)
class Timing:
    wall_s: float
    cpu_s: float
    inside_s: float
    """Of the wall time, inside forward passes of the model."""


class Passes:
    """Counts the seconds a model spends in its forward passes."""

    def __init__(self, model: Any) -> None:
        self.seconds = 0.0
        model.register_forward_pre_hook(lambda *_: self._add(-time.perf_counter()))
        model.register_forward_hook(lambda *_: self._add(time.perf_counter()))

    def _add(self, seconds: float) -> None:
        self.seconds += seconds


def timed(work: Callable[[], object], passes: Passes) -> Timing:
    inside, cpu, wall = passes.seconds, time.process_time(), time.perf_counter()
    work()
    return Timing(time.perf_counter() - wall, time.process_time() - cpu, passes.seconds - inside)


def median(timings: list[Timing]) -> Timing:
    return Timing(*(statistics.median(getattr(t, name) for t in timings) for name in ("wall_s", "cpu_s", "inside_s")))


def prompts_of(rows: int, group: int, vocabulary: int) -> torch.Tensor:
    numbers = torch.Generator().manual_seed(0)
    return torch.randint(2, vocabulary, (rows // group, PROMPT), generator=numbers).repeat_interleave(group, dim=0)


def ours(engine: TorchEngine, prompts: torch.Tensor) -> Callable[[], object]:
    requests = [
        GenerationRequest(id=str(i), prompt_ids=tuple(ids), seed=i, max_tokens=NEW, temperature=1.0)
        for i, ids in enumerate(prompts.tolist())
    ]

    def work() -> None:
        made = asyncio.run(engine.answer(requests))
        assert all(len(c) == NEW for c in made)

    return work


def floors(source: str, dtype: str, rounds: int) -> None:
    own = replace(load_model(source, dtype=dtype), eos_ids=())
    passes = Passes(own.model)
    engine = TorchEngine(own, Torch(dtype=dtype), store=MemoryStore(dtype), clock=FreeClock())
    print(f"\n{Path(source).name}, {dtype}: {PROMPT} prompt tokens, {NEW} new ones, medians of {rounds}; tokens/s")
    print("rows group   tether  a cpu-s  floor   time of the floor's")
    own_cpu_s = {}
    for rows, group in [(rows, 1) for rows in ROWS] + [(rows, GROUP) for rows in ROWS if rows >= GROUP]:
        work = ours(engine, prompts_of(rows, group, own.model.config.vocab_size))
        work()
        mine = median([timed(work, passes) for _ in range(rounds)])
        own_cpu_s[rows, group] = mine.cpu_s
        wall, cpu, inside = (rows * NEW / seconds for seconds in (mine.wall_s, mine.cpu_s, mine.inside_s))
        ratio = mine.wall_s / mine.inside_s
        print(f"{rows:4d} {group:5d}  {wall:8.0f} {cpu:8.0f} {inside:6.0f}   {ratio:5.2f}", flush=True)
    for rows in (rows for rows in ROWS if rows >= GROUP):
        gain = own_cpu_s[rows, 1] / own_cpu_s[rows, GROUP]
        print(f"{rows} rows in groups of {GROUP} take {1 / gain:.2f} of the cpu-seconds of as many single prompts")


async def ask_all(engine: TorchEngine, requests: list[GenerationRequest]) -> list[Completion]:
    return await asyncio.gather(*map(engine.generate, requests))


def stream(source: str, dtype: str, rounds: int, cases: tuple[Case, ...]) -> None:
    """Requests asked one by one against ``answer``: the same requests, rows and engine."""
    own = replace(load_model(source, dtype=dtype), eos_ids=())
    print(f"\n{Path(source).name}, {dtype}: asked one by one against answered in lots, medians of {rounds}; tokens/s")
    print("requests  rows  limits    one by one   lots   ratio  cpu ratio")
    for count, rows, limits in cases:
        engine = TorchEngine(own, Torch(dtype=dtype, max_rows=rows), store=MemoryStore(dtype), clock=FreeClock())
        prompts = prompts_of(count, GROUP, own.model.config.vocab_size).tolist()
        asked = [
            GenerationRequest(
                id=str(i), prompt_ids=tuple(ids), seed=i, max_tokens=limits[i * 7 % len(limits)], temperature=1.0
            )
            for i, ids in enumerate(prompts)
        ]
        tokens = sum(request.max_tokens for request in asked)
        passes = Passes(own.model)
        works = [
            lambda e=engine, r=asked: asyncio.run(ask_all(e, r)),
            lambda e=engine, r=asked: asyncio.run(e.answer(r)),
        ]
        pairs = [[timed(work, passes) for work in works] for _ in range(rounds + 1)][1:]
        mine, lots = (median(list(column)) for column in zip(*pairs, strict=True))
        told = str(NEW) if len(limits) == 1 else f"{min(limits)}..{max(limits)}"
        print(
            f"{count:8d} {rows:5d}  {told:>6s} {tokens / mine.wall_s:13.0f} {tokens / lots.wall_s:6.0f} "
            f"{lots.wall_s / mine.wall_s:7.2f} {lots.cpu_s / mine.cpu_s:10.2f}",
            flush=True,
        )


def cpu_ms(work: Callable[[], object]) -> float:
    """Median processor time of one call, in milliseconds; of fewer calls where one takes long."""
    work()
    times: list[float] = []
    while len(times) < 9 and sum(times) < 1:
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


@torch.inference_mode()
def parts(rows: int, dtype: torch.dtype) -> None:
    """The shapes of SmolLM2: 9 query heads over 3 of keys, 64 wide; 576 hidden units; 49,152 tokens; 72 positions."""
    torch.manual_seed(0)
    query, new = torch.randn(rows, 9, 1, 64).to(dtype), torch.randn(rows, 3, 1, 64).to(dtype)
    cached, roomy = torch.randn(rows, 3, 71, 64).to(dtype), torch.randn(rows, 3, 128, 64).to(dtype)
    seen = torch.ones(rows, 1, 1, 72, dtype=torch.bool)

    def attend(keys: torch.Tensor, values: torch.Tensor) -> None:
        grouped_attention(nn.Module(), query, keys, values, seen)

    def growing() -> None:
        attend(torch.cat([cached, new], dim=2), torch.cat([cached, new], dim=2))

    def in_place() -> None:
        roomy[:, :, 71:72] = new
        attend(roomy[:, :, :72], roomy[:, :, :72])

    def stock() -> None:
        keys, values = (torch.cat([cached, new], dim=2).repeat_interleave(3, dim=1) for _ in range(2))
        scaled_dot_product_attention(query, keys, values, attn_mask=seen)

    hidden, weight = torch.randn(rows, PROMPT, 576).to(dtype), torch.randn(49152, 576).to(dtype)
    last, flat = torch.tensor([-1]), torch.randn(rows, 576).to(dtype)
    logits, uniform = torch.randn(rows, 49152).to(dtype), torch.rand(rows, dtype=torch.float64)
    choices = {
        "attention and cache, a layer": {"grouped, cat": growing, "grouped, static": in_place, "stock, cat": stock},
        "head after a prompt": {
            "list": lambda: linear(hidden[:, last], weight),
            "slice": lambda: linear(hidden[:, -1:], weight),
        },
        "one draw": {
            "with log-prob and entropy": lambda: sample(logits, torch.ones(rows), uniform, may_be_greedy=False),
            "softmax, multinomial": lambda: torch.multinomial(torch.softmax(logits.float(), -1), 1),
        },
    }
    if rows > 16:
        del choices["head after a prompt"]["slice"]  # gigabytes
    if dtype == torch.bfloat16:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        choices["head of a token"] = {
            "plain": lambda: linear(flat, weight),
            "packed": lambda: torch.ops.mkldnn._linear_pointwise(flat, packed, None, "none", [], ""),
        }
    for what, ways in choices.items():
        print(f"{rows:4d} rows, {what}: " + ", ".join(f"{way} {cpu_ms(work):.2f}" for way, work in ways.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="folder of SmolLM2 (or another model)")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    has_model = (Path(given.model) / "config.json").is_file()
    print_machine()
    floors("tiny-moe", given.dtype, given.rounds)
    stream("tiny-moe", given.dtype, given.rounds, CASES)
    if has_model:
        floors(given.model, given.dtype, given.rounds)
        stream(given.model, given.dtype, given.rounds, SHORT)
    else:
        print(
            f"\nno model in {given.model!r}: make it with `tether model smollm2 --out smollm2`, or give --model FOLDER"
        )
    print("\nparts, ms of cpu")
    for rows in ROWS:
        parts(rows, torch.bfloat16 if given.dtype == "bfloat16" else torch.float32)
    return int(not has_model)


if __name__ == "__main__":
    raise SystemExit(main())
