"""What it costs to record what an engine did, and to repeat it in the trainer.

Recording: rows of tiny-moe decoded by the torch engine, and by vLLM where it is installed (.venv-engines/bin/python),
each token's experts reported or not. Repeating: a whole step of the quickstart (forward, loss, backward, update) with
the recorded experts and without. Same rows, work in turns.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from _measure import Cost, in_turns, median, print_machine, ratio, verdict

from tether.config.recipe import Recipe, load
from tether.engines.torch import Torch, TorchEngine
from tether.engines.vllm import Vllm
from tether.models.loading import load_model
from tether.models.policy import Policy
from tether.pipeline.packing import Step, pack
from tether.pipeline.rollouts import Sampling, ask
from tether.pipeline.routing import with_routes
from tether.pipeline.trainer import Trainer
from tether.placement.inline import FreeClock
from tether.ports import GenerationRequest, RolloutEngine
from tether.records import Completion, Group, Rollout
from tether.replay.routing import Routing
from tether.tasks.prompts import PromptSource
from tether.weights.memory import MemoryStore

ROWS, GROUP, NEW = 64, 8, 32
GOAL = 1.05
"""Most times what the same work takes without."""


def requests_of(recipe: Recipe, count: int) -> list[GenerationRequest]:
    """So many, in groups of a prompt, that ask for routes."""
    loaded = load_model("tiny-moe")
    source = PromptSource(
        ("arithmetic", recipe.task), loaded.tokenizer, eos_ids=loaded.eos_ids, room=256, split="train", seed=0
    )
    sampling = Sampling(seed=0, group_size=GROUP, temperature=1.0, max_tokens=NEW, routing=True)
    return [request for i in range(count // GROUP) for request in ask(i, source(i), sampling, 0.0).requests]


def torch_engine(dtype: str) -> RolloutEngine:
    """One whose completions end at their length."""
    loaded = replace(load_model("tiny-moe", dtype=dtype), eos_ids=())
    return TorchEngine(loaded, Torch(dtype=dtype), store=MemoryStore(dtype), clock=FreeClock())


def vllm_engine(dtype: str) -> RolloutEngine:
    """vLLM in this process."""
    options = Vllm(dtype=dtype, max_rows=ROWS, kv_cache_gib=0.25)
    return options.open("tiny-moe", store=MemoryStore(dtype), clock=FreeClock(), device="cpu")


def recording(name: str, engine: RolloutEngine, recipe: Recipe, rounds: int) -> list[Completion]:
    """Prints the ratio; returns completions with their routes."""
    asked = requests_of(recipe, ROWS)
    silent = [replace(request, routing=False) for request in asked]
    works = {
        "without": lambda: asyncio.run(engine.answer(silent)),
        "recorded": lambda: asyncio.run(engine.answer(asked)),
    }
    told(f"{name}, {ROWS} rows of up to {NEW} tokens", in_turns(works, rounds), "recorded")
    return asyncio.run(engine.answer(asked))


def step_of(recipe: Recipe, completions: Sequence[Completion]) -> Step:
    """The step that the quickstart would make of them, half of them right."""
    policy = Policy(load_model("tiny-moe"))
    asked = requests_of(recipe, ROWS)
    source = PromptSource(
        ("arithmetic", recipe.task),
        policy.loaded.tokenizer,
        eos_ids=policy.loaded.eos_ids,
        room=256,
        split="train",
        seed=0,
    )
    rollouts = [
        Rollout(
            id=request.id,
            prompt=source(i // GROUP),
            completion=completion,
            text="",
            reward=float(i % 2),
            started_s=0.0,
            finished_s=0.0,
        )
        for i, (request, completion) in enumerate(zip(asked, completions, strict=True))
    ]
    groups = [
        Group(id=f"g{g}", index=g, rollouts=tuple(rollouts[g * GROUP : (g + 1) * GROUP])) for g in range(ROWS // GROUP)
    ]
    return pack(
        groups,
        recipe.algorithm.advantage,
        token_budget=recipe.trainer.token_budget,
        pad_id=policy.loaded.pad_id,
        device="cpu",
        sharing=policy.sharing,
    )


def trainer_of(recipe: Recipe) -> Trainer:
    """One that hardly moves."""
    return Trainer(
        Policy(load_model("tiny-moe")),
        recipe.algorithm,
        replace(recipe.trainer, lr=1e-9),
        reference=None,
        temperature=1.0,
        limits=(10**6, 10**6),
    )


def repeating(recipe: Recipe, completions: Sequence[Completion], rounds: int) -> None:
    """Prints what the engine's routes cost a step, and the trainer's own a batch of two updates."""
    trainer, step = trainer_of(recipe), step_of(recipe, completions)
    works = {
        "without": lambda: trainer.step(step),
        "replayed": lambda: trainer.step(with_routes(step, Routing(), trainer.policy)),
    }
    told(f"a step of {ROWS} rollouts, the engine's routes", in_turns(works, rounds), "replayed")
    own = trainer_of(load("quickstart", ["algorithm.preset=sat-gspo-r2", "pipeline.updates_per_batch=2"]))
    works = {"without": lambda: trainer.step(step, 2), "replayed": lambda: own.step(step, 2)}
    told(f"two updates of {ROWS} rollouts, the trainer's routes", in_turns(works, rounds), "replayed")


def told(what: str, costs: dict[str, list[Cost]], name: str) -> None:
    print(f"{what}: without {median(costs['without'])}, {name} {median(costs[name])}", flush=True)
    print(f"  {verdict(ratio(costs[name], costs['without']), GOAL)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print_machine()
    recipe = load("quickstart")
    for dtype in ("bfloat16", "float32"):
        made = recording(f"torch engine, {dtype}", torch_engine(dtype), recipe, rounds)
    repeating(recipe, made, rounds)
    if find_spec("vllm") is None:
        print("no vLLM here: make engines, then .venv-engines/bin/python benchmarks/replay.py")
    else:
        recording("vLLM, bfloat16", vllm_engine("bfloat16"), recipe, rounds)


if __name__ == "__main__":
    main()
