"""From a bound recipe to a run: models loaded, engines opened, the run directory made, everything wired once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from tether.config.abilities import check_opened
from tether.config.data import check_data, data_notices, with_data
from tether.config.learning import makers_of, routing_of, support_of
from tether.config.parts import device_of, prompts_of, reader_of
from tether.config.recipe import Recipe
from tether.config.resume import ResumePlan, locked, roll_back
from tether.config.rewarding import rewards_of
from tether.errors import ConfigError
from tether.journal.ledger import Ledger
from tether.journal.reader import RunView
from tether.journal.writer import RunWriter, check_unused
from tether.models.loading import resolve_source
from tether.pipeline.alarms import Alarms
from tether.pipeline.buffer import GroupBuffer
from tether.pipeline.checkpoint import Checkpoints
from tether.pipeline.controller import Controller, Observer
from tether.pipeline.curriculum import Curriculum
from tether.pipeline.interrupts import StopRequest
from tether.pipeline.loops import Loops, Packing
from tether.pipeline.nonfinite import dump
from tether.pipeline.pool import Pool
from tether.pipeline.publisher import Publisher
from tether.pipeline.rolling import Rolling
from tether.pipeline.rollouts import Sampling
from tether.pipeline.selfcheck import Probe
from tether.pipeline.snapshot import Snapshot, read_snapshot
from tether.pipeline.timeline import Timeline
from tether.placement.parts import Parts
from tether.records import Prompt
from tether.report.page import write_report

FIRST_PROMPTS = 256
"""Prompts that are encoded and measured before anything else."""
NUM_SAMPLINGS = 20
"""About how often samples are stored in a run."""


def check(recipe: Recipe, out: Path | None = None) -> None:
    """What can be refused without loading a model: reward, problems, the model's place, device, run directory."""
    rewards_of(recipe.reward, recipe.task)
    check_data(recipe)
    for source in (recipe.model.path, recipe.model.reference):
        if source:
            resolve_source(source)
    recipe.engine.check()
    recipe.placement.check(device_of(recipe.run.device))
    if out is not None:
        check_unused(out)


def train(recipe: Recipe, out: str | Path, observers: tuple[Observer, ...] = ()) -> Path:
    """Run a recipe into a new run directory and write its report; returns the directory.

    What stops the run is raised after the books are closed, and a report of what there is is written even then.
    """
    folder = Path(out)
    check(recipe, folder)
    with placed(recipe) as parts:
        return _run(recipe, parts, build(recipe, parts, partial(RunWriter, folder), observers), None)


def go_on(plan: ResumePlan, observers: tuple[Observer, ...] = ()) -> Path:
    """Go on with a run from its newest whole checkpoint, or from the start if there is none."""
    check(plan.recipe)
    checkpoint = plan.checkpoint
    with locked(plan) as writer, placed(plan.recipe) as parts:
        snapshot = None if checkpoint is None else read_snapshot(checkpoint.state)
        controller = build(plan.recipe, parts, partial(roll_back, plan, writer), observers)
        if checkpoint is not None and snapshot is not None:
            lines = RunView(plan.folder).ledger
            controller.loops.ledger.restore(lines, snapshot.open_lines)
            controller.restore(snapshot, checkpoint.state)
        return _run(plan.recipe, parts, controller, snapshot)


def placed(recipe: Recipe) -> AbstractContextManager[Parts]:
    """The parts of a run, where its placement puts them, for as long as the block lasts."""
    return recipe.placement.open(makers_of(recipe, device_of(recipe.run.device)))


def _run(recipe: Recipe, parts: Parts, controller: Controller, snapshot: Snapshot | None) -> Path:
    folder = controller.writer.folder
    try:
        with controller.writer as writer:
            parts.notices.listen(writer.process, controller.warn)
            start_s = 0.0 if snapshot is None else snapshot.now_s
            recipe.placement.run(controller.run(), controller.stop, start_s=start_s)
    except BaseException:
        with suppress(Exception):  # what stopped the run is the error to tell
            write_report(folder)
        raise
    write_report(folder)
    return folder


def build(
    recipe: Recipe, parts: Parts, open_writer: Callable[[], RunWriter], observers: tuple[Observer, ...] = ()
) -> Controller:
    """Wire a run. Everything that can be refused is refused here, before any long work and before the run directory
    is touched."""
    learner, engines, clock = parts.learner, parts.engines, parts.clock
    rewards_of(recipe.reward, recipe.task)
    task, max_tokens = (recipe.task_name, recipe.task), recipe.engine.max_tokens
    prompts = prompts_of(task, parts.vocabulary, max_tokens, "train", recipe.run.seed)
    first = min(FIRST_PROMPTS, recipe.run.steps * recipe.pipeline.prompts_per_step)
    check_curriculum(recipe, [prompts(index) for index in range(first)])  # one that cannot fit is refused now
    sampling = _sampling(recipe)
    for engine in engines.values():
        check_opened(engine.capabilities, recipe)
    writer = open_writer()
    writer.config(with_data(recipe))
    probe = Probe(
        options=recipe.checks,
        learner=learner,
        prompts=prompts,
        sampling=sampling,
        dtypes=(recipe.engine.dtype, recipe.trainer.dtype),
        eos_ids=frozenset(parts.vocabulary.eos_ids),
        is_several=len(engines) > 1,
    )
    publisher = Publisher(learner, engines, clock, (probe,), recipe.pipeline.in_flight, parts.evaluator)
    controller = Controller(
        loops=_loops(recipe, parts, writer, publisher, prompts),
        writer=writer,
        eval_options=recipe.eval,
        checkpoints=Checkpoints(writer.folder),
        checkpoint_options=recipe.checkpoint,
        stop=StopRequest(),
        samples=recipe.run.samples,
        samples_every=max(1, recipe.run.steps // NUM_SAMPLINGS),
        doubts=(*recipe.doubts, *data_notices(recipe, prompts, parts.vocabulary)),
        alarms=Alarms(recipe.pipeline),
        observers=observers,
    )
    controller.loops.rolling.told = controller.warn
    return controller


def _loops(
    recipe: Recipe, parts: Parts, writer: RunWriter, publisher: Publisher, prompts: Callable[[int], Prompt]
) -> Loops:
    schedule, learner = recipe.pipeline, parts.learner
    pool = Pool(parts.engines, recipe.engine.max_rows, parts.clock.now)
    pool.revive = publisher.revive
    ledger = Ledger(writer.ledger)
    rolling = Rolling(
        pool=pool,
        reader=reader_of(parts.vocabulary),
        score=parts.score,
        buffer=GroupBuffer(schedule.slots, recipe.run.steps * schedule.prompts_per_step, schedule.window),
        ledger=ledger,
        clock=parts.clock,
        timeline=Timeline(writer.span if recipe.run.trace else None, parts.clock.now),
        faults=recipe.faults,
        selection=recipe.selection,
        loads=publisher.loads,
        updates=lambda: learner.updates,
        task=recipe.task_name,
        evaluator=parts.evaluator,
    )
    return Loops(
        steps=recipe.run.steps,
        schedule=schedule,
        prompts=prompts,
        sampling=_sampling(recipe),
        packing=Packing(
            advantage=recipe.algorithm.advantage,
            token_budget=recipe.trainer.token_budget,
            pad_id=parts.vocabulary.pad_id,
            device=parts.device,
            sharing=learner.sharing,
        ),
        rolling=rolling,
        learner=learner,
        publisher=publisher,
        watch=parts.watch,
        ledger=ledger,
        dump=partial(dump, writer.folder),
        curriculum=None if (chosen := recipe.curriculum).is_off else Curriculum(chosen, prompts, rolling.updates),
        acquires=recipe.old.strategy == "interruption",
    )


def check_curriculum(recipe: Recipe, first: Sequence[Prompt]) -> None:
    """Refuse a curriculum that has nothing to go by."""
    options = recipe.curriculum
    has_keys, has_rates = any(p.problem for p in first), any(p.pass_rate is not None for p in first)
    if (options.retires or (options.orders and not has_rates)) and not has_keys:
        raise ConfigError(
            "a curriculum measures pass rates of problems that come again, by their keys; the first "
            f"{len(first)} of task {recipe.task_name!r} have none: take a task with a data file, or leave [curriculum] "
            "out"
        )
    if options.filters and not has_rates:
        raise ConfigError(
            "curriculum.least and most go by the pass rates that the data name; the first "
            f"{len(first)} problems of task {recipe.task_name!r} have none: name the data's column of pass rates, or "
            "leave them out"
        )


def _sampling(recipe: Recipe) -> Sampling:
    return Sampling(
        seed=recipe.run.seed,
        group_size=recipe.pipeline.group_size,
        temperature=recipe.engine.temperature,
        max_tokens=recipe.engine.max_tokens,
        routing=routing_of(recipe.algorithm) is not None,
        truncation=recipe.engine.truncation,
        kept=support_of(recipe.algorithm) is not None,
    )
