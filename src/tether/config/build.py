"""From a bound recipe to a run: models loaded, engines opened, the run directory made, everything wired once."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from tether.config.parts import correct_by, device_of, evaluation_set, judge_of, prompts_of, reward_of
from tether.config.recipe import Recipe
from tether.errors import ConfigError
from tether.evals.runner import Evaluation, Evaluator
from tether.journal.ledger import Ledger
from tether.journal.writer import RunWriter, check_unused
from tether.models.loading import DTYPES, LoadedModel, load_model, resolve_source
from tether.models.policy import Policy
from tether.pipeline.checkpoint import Checkpoints
from tether.pipeline.controller import Controller, Evaluate, Observer
from tether.pipeline.loops import Loops, Packing
from tether.pipeline.nonfinite import dump
from tether.pipeline.publisher import Publisher
from tether.pipeline.rollouts import Sampling
from tether.pipeline.stopwatch import Stopwatch
from tether.pipeline.trainer import Trainer
from tether.placement.inline import FreeClock
from tether.ports import EngineCapabilities
from tether.registry import REWARDS
from tether.report.page import write_report
from tether.weights.memory import MemoryStore

FIRST_PROMPTS = 256
"""Prompts that are encoded and measured before anything else."""
NUM_SAMPLINGS = 20
"""About how often samples are stored in a run."""


def check(recipe: Recipe, out: Path | None = None) -> None:
    """What can be refused without loading a model: the reward, the model's place, the device, the run directory."""
    reward_of(recipe.task.reward)
    for source in (recipe.model.path, recipe.model.reference):
        if source:
            resolve_source(source)
    device_of(recipe.run.device)
    if out is not None:
        check_unused(out)


def train(recipe: Recipe, out: str | Path, observers: tuple[Observer, ...] = ()) -> Path:
    """Run a recipe into a new run directory and write its report; returns the directory.

    What stops the run is raised after the books are closed, and a report of what there is is written even then.
    """
    folder = Path(out)
    controller = build(recipe, folder, observers)
    try:
        with controller.writer:
            recipe.placement.run(controller.run())
    except BaseException:
        with suppress(Exception):  # what stopped the run is the error to tell
            write_report(folder)
        raise
    write_report(folder)
    return folder


def build(recipe: Recipe, out: Path, observers: tuple[Observer, ...] = ()) -> Controller:
    """Wire a run. Everything that can be refused is refused here, before any long work."""
    check(recipe, out)
    device = device_of(recipe.run.device)
    loaded = load_model(recipe.model.path, dtype=recipe.model.dtype, device=device)
    loaded.model.to(dtype=DTYPES[recipe.trainer.dtype])
    reward = reward_of(recipe.task.reward)
    task, max_tokens = (recipe.task_name, recipe.task), recipe.engine.max_tokens
    prompts = prompts_of(task, loaded, max_tokens, "train", recipe.run.seed)
    for index in range(min(FIRST_PROMPTS, recipe.run.steps * recipe.pipeline.prompts_per_step)):
        prompts(index)  # one that cannot fit is refused now
    trainer = _trainer(recipe, loaded, device)
    clock, watch = recipe.placement.clock(), Stopwatch()
    engine_options = recipe.engine
    store = MemoryStore(engine_options.dtype)
    engine = engine_options.open(recipe.model.path, store=store, clock=clock, device=device)
    _check_engine(engine.capabilities, engine_options.temperature)
    evaluate = _evaluator(recipe, loaded, trainer, device)
    writer = RunWriter(out)
    writer.config(recipe.resolved())
    loops = Loops(
        steps=recipe.run.steps,
        schedule=recipe.pipeline,
        prompts=prompts,
        sampling=Sampling(
            seed=recipe.run.seed,
            group_size=recipe.pipeline.group_size,
            temperature=engine_options.temperature,
            max_tokens=max_tokens,
        ),
        packing=Packing(
            advantage=recipe.algorithm.advantage,
            token_budget=recipe.trainer.token_budget,
            pad_id=loaded.pad_id,
            device=device,
        ),
        engine=engine,
        wave=engine_options.max_rows,
        judge=judge_of(loaded, reward),
        trainer=trainer,
        publisher=Publisher(store, engine, clock, trainer.policy.weights),
        clock=clock,
        watch=watch,
        ledger=Ledger(writer.ledger),
        dump=partial(dump, out),
    )
    return Controller(
        loops=loops,
        writer=writer,
        evaluate=evaluate,
        eval_options=recipe.eval,
        checkpoints=Checkpoints(out, loaded, recipe.checkpoint, recipe.model.dtype),
        samples=recipe.run.samples,
        samples_every=max(1, recipe.run.steps // NUM_SAMPLINGS),
        observers=observers,
    )


def _check_reference(loaded: LoadedModel, frozen: LoadedModel) -> None:
    """Refuse a reference that reads other words, or fewer, than the model that is trained."""
    if frozen.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
        raise ConfigError(
            f"model.reference must have the tokenizer of model.path, or its log-probs are of other words; that of "
            f"{frozen.source!r} differs; leave model.reference out for the model as it is before training"
        )
    if frozen.context < loaded.context:
        raise ConfigError(
            f"the context of model.reference must be at least the model's {loaded.context} tokens; {frozen.source!r} "
            f"has {frozen.context}"
        )


def _check_engine(capabilities: EngineCapabilities, temperature: float) -> None:
    """Refuse an engine whose reports would mean something else than the trainer takes them for."""
    if capabilities.logp == "raw" and temperature != 1.0:
        raise ConfigError(
            f"this engine reports log-probs before the temperature, so engine.temperature must be 1; got {temperature}"
        )
    missing = [name for name in ("entropy", "token_versions") if not getattr(capabilities, name)]
    if missing:
        names = ", ".join(missing)
        raise ConfigError(f"training needs an engine that reports {names} of every token; this one does not")


def _trainer(recipe: Recipe, loaded: LoadedModel, device: str) -> Trainer:
    reference = None
    if recipe.algorithm.kl is not None:
        frozen = load_model(recipe.model.reference or recipe.model.path, dtype=recipe.model.dtype, device=device)
        _check_reference(loaded, frozen)
        frozen.model.to(dtype=DTYPES[recipe.trainer.dtype]).requires_grad_(False)
        reference = Policy(frozen)
    return Trainer(
        Policy(loaded, gradient_checkpointing=recipe.trainer.gradient_checkpointing),
        recipe.algorithm,
        recipe.trainer,
        reference=reference,
        temperature=recipe.engine.temperature,
        limits=(recipe.run.steps, recipe.pipeline.allowed),
    )


def _evaluator(recipe: Recipe, loaded: LoadedModel, trainer: Trainer, device: str) -> Evaluate:
    """Evaluates the trainer's weights of the moment."""
    options, store = recipe.eval, MemoryStore(recipe.engine.dtype)
    source = prompts_of((recipe.task_name, recipe.task), loaded, recipe.engine.max_tokens, "heldout", recipe.run.seed)
    prompts, requests = evaluation_set(
        source,
        options.prompts,
        seed=recipe.run.seed,
        temperature=options.temperature,
        max_tokens=recipe.engine.max_tokens,
    )
    engine = recipe.engine.open(recipe.model.path, store=store, clock=FreeClock(), device=device)
    judge = judge_of(loaded, REWARDS.build("exact"))
    evaluator = Evaluator(engine, store, prompts, requests, correct_by(judge))

    async def evaluate() -> Evaluation:
        return await evaluator(trainer.updates, trainer.policy.weights())

    return evaluate
