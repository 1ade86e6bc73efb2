"""What the framework adds to a step: CPU seconds of a real run against those of its tensor work alone.

A run of the quickstart's recipe is metered while it goes on. Its floor is what any trainer must do: the models' forward
passes, sampling, the backward pass, clipping the gradient and AdamW. All else is overhead: asking, judging, packing,
the loss and its statistics, metrics, publications, the journal, the loops. Evaluation is off. The self-checks after
each publication, which run the models themselves, are part of the step, their passes part of the floor; a second run
goes without them. A third takes a dense model of 7 million parameters, whose tensor work is larger and its bookkeeping
the same.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from _measure import print_machine, verdict

from tether.config import build
from tether.config.recipe import load
from tether.engines import sampling
from tether.engines.decoding import RowBatch
from tether.journal.writer import RunWriter
from tether.models.loading import load_model, save_model
from tether.models.policy import Policy
from tether.pipeline.stopwatch import Stopwatch
from tether.records import Event

GOAL = 1.15
LAG = 8
FLOOR = ("forward", "sampling", "backward", "optimizer")
WORK = ("generate", "train", "publish")
"""Kinds of work that run the models."""


class Enough(Exception):  # noqa: N818 - no error
    """The window is over; the rest of the run is of no interest."""


class Meter:
    """CPU seconds by place; a moment counts for the innermost place that it lies in.

    Tensor work is told apart inside ``generate``, ``train`` and ``publish``, whose self-check runs the models too.
    """

    def __init__(self) -> None:
        self.places = ["loops"]
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.wall_s = 0.0
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def start(self) -> None:
        self._count()
        self.seconds.clear()
        self._wall = time.perf_counter()

    def stop(self) -> None:
        self._count()
        self.wall_s = time.perf_counter() - self._wall

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        self._count()
        self.places.append(place)
        try:
            yield
        finally:
            self._count()
            self.places.pop()

    def tensor_work(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, its time counted as ``generate/name`` or ``train/name``."""

        @wraps(function)
        def metered(*args: Any, **options: Any) -> Any:
            if self.places[-1] not in WORK:
                return function(*args, **options)
            with self.at(f"{self.places[-1]}/{name}"):
                return function(*args, **options)

        return metered

    def counting(self, function: Callable[..., Any], place: str) -> Callable[..., Any]:
        """The function, its time counted at a place."""

        @wraps(function)
        def metered(*args: Any, **options: Any) -> Any:
            with self.at(place):
                return function(*args, **options)

        return metered

    def _count(self) -> None:
        now = time.process_time()
        self.seconds[self.places[-1]] += now - self._cpu
        self._cpu = now

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def floor_s(self) -> float:
        return sum(spent for place, spent in self.seconds.items() if place.partition("/")[2] in FLOOR)


@contextmanager
def metered(meter: Meter, model: type) -> Iterator[None]:
    """Hooks at every place that is told apart, gone afterwards."""
    before: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    running = Stopwatch.running

    @contextmanager
    def at_kind(watch: Stopwatch, what: str) -> Iterator[None]:
        with running(watch, what), meter.at(what):
            yield

    put(Stopwatch, "running", at_kind)
    for name in ("join", "advance"):  # the engine's rows, in a task of its own
        put(RowBatch, name, meter.counting(getattr(RowBatch, name), "generate"))
    for name in ("event", "ledger", "rollouts"):
        put(RunWriter, name, meter.counting(getattr(RunWriter, name), "journal"))
    put(build, "write_report", lambda folder: folder)
    put(model, "forward", meter.tensor_work(model.forward, "forward"))  # type: ignore[attr-defined]
    put(Policy, "__call__", meter.tensor_work(Policy.__call__, "forward"))
    put(torch.Tensor, "backward", meter.tensor_work(torch.Tensor.backward, "backward"))
    put(torch.nn.utils, "clip_grad_norm_", meter.tensor_work(torch.nn.utils.clip_grad_norm_, "optimizer"))
    put(torch.optim.AdamW, "step", meter.tensor_work(torch.optim.AdamW.step, "optimizer"))
    drawn = meter.tensor_work(sampling.sample, "sampling")
    for module in [m for name, m in sys.modules.items() if name.startswith("tether.engines")]:
        if getattr(module, "sample", None) is sampling.sample and module is not sampling:
            put(module, "sample", drawn)
    try:
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


def run(settings: list[str], model: str, blocks: int) -> Meter:
    """Meter ``blocks`` publications' worth of steps of a run, after the first block, and stop it."""
    meter = Meter()
    first, last = LAG, LAG * (1 + blocks)

    def window(event: Event) -> None:
        if event.event in ("step", "skip") and event.step == first:
            meter.start()
        if event.event in ("step", "skip") and event.step == last:
            meter.stop()
            raise Enough

    recipe = load("quickstart", [f"pipeline.lag={LAG}", "eval.every=0", "eval.prompts=8", *settings])
    with tempfile.TemporaryDirectory() as folder, metered(meter, type(load_model(model).model)):
        try:
            build.train(recipe, Path(folder) / "run", (window,))
        except Enough:
            return meter
    raise AssertionError("the run ended before its window")


def report(title: str, settings: list[str], model: str, blocks: int, repeats: int) -> None:
    """The run with the median overhead."""
    meters = sorted((run(settings, model, blocks) for _ in range(repeats)), key=lambda m: m.total_s / m.floor_s)
    meter, steps = meters[repeats // 2], LAG * blocks
    ms = {place: 1e3 * spent / steps for place, spent in meter.seconds.items()}
    print(f"{title}: {steps} steps, median overhead of {repeats} run(s), CPU ms a step")
    for part in WORK:
        tensor = ", ".join(f"{name} {ms[f'{part}/{name}']:.1f}" for name in FLOOR if f"{part}/{name}" in ms)
        print(f"  {part:9s} {sum(v for k, v in ms.items() if k.startswith(part)):7.1f}   {tensor}, rest {ms[part]:.1f}")
    for part in sorted(place for place in ms if "/" not in place and place not in WORK):
        print(f"  {part:9s} {ms[part]:7.1f}")
    print(f"  step      {1e3 * meter.total_s / steps:7.1f}   {1e3 * meter.wall_s / steps:.1f} wall")
    print(f"  floor     {1e3 * meter.floor_s / steps:7.1f}   forward, sampling, backward, optimizer")
    print(f"  step / floor   {verdict(meter.total_s / meter.floor_s, GOAL)}")


def dense(folder: Path) -> str:
    """A randomly initialised Qwen3 of 7 million parameters with the tokenizer of tiny-moe."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tiny = load_model("tiny-moe")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=tiny.model.config.vocab_size,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=9,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tiny.pad_id,
        eos_token_id=tiny.eos_ids[0],
    )
    return str(save_model(replace(tiny, model=Qwen3ForCausalLM(config)), folder))


def main() -> None:
    print_machine()
    tiny = "tiny-moe, 0.4 M parameters, 64 rollouts a step"
    report(tiny, [], "tiny-moe", 2, 3)
    report(f"{tiny}, no self-checks", ["checks.prompts=0"], "tiny-moe", 2, 1)
    with tempfile.TemporaryDirectory() as folder:
        model = dense(Path(folder) / "dense")
        settings = [f"model.path={model}", "algorithm.preset=sat-gspo", "pipeline.prompts_per_step=2"]
        report("Qwen3, 7 M parameters, 16 rollouts a step", settings, model, 1, 1)


if __name__ == "__main__":
    main()
