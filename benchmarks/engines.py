"""Tokens a second, and a CPU second, of the embedded engine, of transformers' ``generate`` and of vLLM, in one run.

Same prompts, number format, threads and number of new tokens, plain sampling at temperature 1, no end of sequence, no
prefix shared. Each engine has a process of its own, one after the other; every size is done once to warm up, then three
times; medians are printed. Both engines report the log-probability of each token, ``generate`` reports nothing. vLLM
runs in this process (no server, eager, its own batching); where it is not installed its part is left out, and said so.

    tether model smollm2 --out smollm2          # once
    make bench-engines                          # or, without vLLM: python benchmarks/engines.py
    python benchmarks/engines.py --model FOLDER --dtype float32 --rounds 5 --only tiny-dense
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _measure import Cost, cost_of, median, print_machine, verdict

ROWS = (1, 16, 64)
PROMPT, NEW = 40, 32
THREADS = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Unless set otherwise. vLLM would pin threads that spin, which costs everybody else on the machine."""
VLLM = {
    **{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"},
    **{"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
}
GOALS = {"tiny-moe": 1.0, "tiny-dense": 1.0}
"""Most time of the embedded engine against vLLM's, at every number of rows; another model's is ``LARGE``. Beside other
work on the machine CPU seconds alone say something, and on a quiet one wall time says more."""
LARGE, LARGE_ROWS = 1.3, 16

Work = Callable[[], object]
Made = Iterator[tuple[int, Work]]


def prompts_of(rows: int, vocabulary: int) -> list[list[int]]:
    import torch

    numbers = torch.Generator().manual_seed(rows)
    return torch.randint(2, vocabulary, (rows, PROMPT), generator=numbers).tolist()


def embedded(model: str, dtype: str) -> Made:
    """The engine ``torch``."""
    from tether.engines.torch import Torch, TorchEngine
    from tether.models.loading import load_model
    from tether.placement.inline import FreeClock
    from tether.ports import GenerationRequest
    from tether.weights.memory import MemoryStore

    loaded = replace(load_model(model, dtype=dtype), eos_ids=())
    engine = TorchEngine(loaded, Torch(dtype=dtype), store=MemoryStore(dtype), clock=FreeClock())
    for rows in ROWS:
        asked = [
            GenerationRequest(id=str(i), prompt_ids=tuple(ids), seed=i, max_tokens=NEW, temperature=1.0)
            for i, ids in enumerate(prompts_of(rows, loaded.model.config.vocab_size))
        ]
        yield rows, lambda asked=asked: checked(len(c) for c in asyncio.run(engine.answer(asked)))


def generate(model: str, dtype: str) -> Made:
    """``generate`` of transformers."""
    import torch
    from transformers import GenerationConfig

    from tether.models.loading import load_model

    loaded = load_model(model, dtype=dtype).model
    loaded.generation_config.eos_token_id = None
    config = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0
    )
    for rows in ROWS:
        ids = torch.tensor(prompts_of(rows, loaded.config.vocab_size))

        def work(ids: torch.Tensor = ids) -> None:
            made = loaded.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
            checked([made.shape[1] - PROMPT])

        yield rows, work


def vllm(model: str, dtype: str) -> Made:
    """vLLM as it is, in this process."""
    from vllm import LLM, SamplingParams

    from tether.models.loading import resolve_source

    source = resolve_source(model)
    vocabulary = int(json.loads((Path(source) / "config.json").read_text())["vocab_size"])
    llm = LLM(
        model=source,
        dtype=dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
        distributed_executor_backend="uni",
        enable_prefix_caching=False,
        max_model_len=2 * (PROMPT + NEW),
        max_num_seqs=max(ROWS),
        use_tqdm_on_load=False,
        logprobs_mode="processed_logprobs",
    )
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, logprobs=0, detokenize=False)
    for rows in ROWS:
        asked: Any = [{"prompt_token_ids": ids} for ids in prompts_of(rows, vocabulary)]

        def work(asked: Any = asked) -> None:
            checked(len(made.outputs[0].token_ids) for made in llm.generate(asked, sampling, use_tqdm=False))

        yield rows, work


ENGINES: dict[str, Callable[[str, str], Made]] = {"embedded": embedded, "generate": generate, "vllm": vllm}


def checked(lengths: Any) -> None:
    assert all(length == NEW for length in lengths), "every completion has as many tokens as asked for"


def measure(engine: str, models: Sequence[str], dtype: str, rounds: int) -> None:
    """In a process of the engine's own: a line of JSON for each model and number of rows."""
    for model in models:
        for rows, work in ENGINES[engine](model, dtype):
            work()
            cost = median([cost_of(work) for _ in range(rounds)])
            print(json.dumps({"model": model, "rows": rows, "wall_s": cost.wall_s, "cpu_s": cost.cpu_s}), flush=True)


def measured(engine: str, models: Sequence[str], dtype: str, rounds: int) -> dict[tuple[str, int], Cost]:
    """What an engine took, by model and rows. vLLM opens one model a process, the others all of them in turn."""
    found: dict[tuple[str, int], Cost] = {}
    for chosen in [[model] for model in models] if engine == "vllm" else [list(models)]:
        command = [sys.executable, __file__, "--engine", engine, "--dtype", dtype, "--rounds", str(rounds)]
        ran = subprocess.run(
            [*command, "--only", *chosen], env={**THREADS, **VLLM, **os.environ}, text=True, stdout=subprocess.PIPE
        )
        if ran.returncode:
            raise SystemExit(f"{engine} failed on {', '.join(chosen)}; what it wrote stands above")
        for line in map(json.loads, (line for line in ran.stdout.splitlines() if line.startswith("{"))):
            found[line["model"], line["rows"]] = Cost(line["wall_s"], line["cpu_s"])
    return found


def tell(model: str, costs: dict[str, dict[tuple[str, int], Cost]]) -> None:
    """A table of one model, and how the embedded engine stands against the others."""
    print(
        f"\n{Path(model).name}: {PROMPT} prompt tokens, {NEW} new ones; tokens/s, and tokens a CPU second in brackets"
    )
    print("rows " + "".join(f"{engine:>18s}" for engine in costs) + "   embedded takes, of " + ", ".join([*costs][1:]))
    for rows in ROWS:
        own = costs["embedded"][model, rows]
        speeds = [rows * NEW / seconds for found in costs.values() for seconds in found[model, rows]]
        shown = "".join(f"{wall:9.0f} {f'({cpu:.0f})':>8s}" for wall, cpu in zip(*[iter(speeds)] * 2, strict=True))
        others = [found[model, rows] for engine, found in costs.items() if engine != "embedded"]
        ratios = ", ".join(f"{own.wall_s / o.wall_s:.2f} (CPU {own.cpu_s / o.cpu_s:.2f})" for o in others)
        print(f"{rows:4d} {shown}   {ratios}")
    if "vllm" in costs:
        sizes = ROWS if model in GOALS else (LARGE_ROWS,)
        for rows in sizes:
            own, theirs = costs["embedded"][model, rows], costs["vllm"][model, rows]
            wall, cpu = (verdict(a / b, GOALS.get(model, LARGE)) for a, b in zip(own, theirs, strict=True))
            print(f"embedded engine against vLLM, {rows} rows: wall {wall}; CPU {cpu}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="folder of SmolLM2 (or another model)")
    parser.add_argument("--only", nargs="+", help="measure these models alone")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", choices=[*ENGINES], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.engine:
        measure(given.engine, given.only, given.dtype, given.rounds)
        return 0
    has_model = (Path(given.model) / "config.json").is_file()
    models = given.only or [*GOALS, *([given.model] if has_model else [])]
    os.environ |= {**THREADS, **os.environ}
    print_machine()
    print(f"{given.dtype}, OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']} in each engine's process")
    engines = [engine for engine in ENGINES if engine != "vllm" or find_spec("vllm") is not None]
    costs = {engine: measured(engine, models, given.dtype, given.rounds) for engine in engines}
    for model in models:
        tell(model, costs)
    if "vllm" not in costs:
        print("\nLEFT OUT: vLLM, which is not installed here; `make engines` builds an environment that has it, and")
        print("`make bench-engines` runs this in it. The goals, 1.3x of vLLM and less, are those of that run.")
    if not (has_model or given.only):
        print(f"\nno model in {given.model!r}: `tether model smollm2 --out smollm2` makes it, or give --model FOLDER")
    return int(not (has_model or given.only))


if __name__ == "__main__":
    raise SystemExit(main())
