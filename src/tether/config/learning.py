"""Makers of a run's parts, from a recipe: the engine; the learner with model, reference, optimizer, evaluation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from torch import Tensor

from tether.config.data import asked_of
from tether.config.parts import evaluation_set, judge_by, prompts_of, protocol_of, reader_of
from tether.config.recipe import Recipe
from tether.config.rewarding import criterion_of, rewards_of
from tether.core.algorithm import Algorithm
from tether.engines.torch import Torch
from tether.errors import ConfigError
from tether.evals.evaluation import Evaluation
from tether.evals.runner import Evaluator
from tether.models.conversion import convert_weights
from tether.models.loading import DTYPES, LoadedModel, load_model
from tether.models.lora import adapt
from tether.models.policy import Policy
from tether.pipeline.acquisition import Acquisition
from tether.pipeline.learner import LocalLearner
from tether.pipeline.old_evaluator import Evaluated, OldEvaluator
from tether.pipeline.old_policy import Cost, OldPolicy, Rescoring, most_versions
from tether.pipeline.scoring import Scorer
from tether.pipeline.snapshots import Snapshots, WeightCopies
from tether.pipeline.trainer import Trainer
from tether.placement.inline import FreeClock
from tether.placement.parts import EvaluatorMaker, Makers
from tether.ports import Clock, EngineOptions, RolloutEngine, WeightStore
from tether.replay.routing import Routing
from tether.replay.support import Support
from tether.weights.memory import MemoryStore


def makers_of(recipe: Recipe, device: str) -> Makers:
    """Makers of a recipe's parts, for the placement to call where they are to live."""
    return Makers(
        learner=partial(learner_of, recipe),
        engine=partial(engine_of, recipe),
        rewards=partial(rewards_of, recipe.reward, recipe.task),
        dtype=recipe.engine.dtype,
        device=device,
        evaluator=None
        if recipe.old.strategy != "evaluator"
        else EvaluatorMaker(
            make=partial(evaluator_of, recipe), dtype=recipe.trainer.dtype, versions=versions_held(recipe)
        ),
    )


def engine_of(recipe: Recipe, store: WeightStore, clock: Clock, device: str) -> RolloutEngine:
    """The engine that makes the rollouts."""
    return recipe.engine.open(recipe.model.path, store=store, clock=clock, device=device, lora=recipe.model.lora)


def learner_of(recipe: Recipe, store: WeightStore, device: str, full_store: WeightStore | None = None) -> LocalLearner:
    """A learner with a model of its own. ``full_store``: in the trainer's dtype, for an evaluator of old log-probs."""
    loaded = _model_of(recipe, device)
    trainer, routing = _trainer(recipe, loaded, device), routing_of(recipe.algorithm)
    support, truncation = support_of(recipe.algorithm), recipe.engine.truncation
    if any(isinstance(replay, Routing) for replay in recipe.algorithm.replay):
        trainer.policy.routers  # noqa: B018  # refused now if there are none to overrule
    return LocalLearner(
        trainer=trainer,
        routing=routing,
        support=support,
        truncation=None if support is not None or truncation.is_none else truncation,
        store=store,
        evaluator=_evaluator(recipe, loaded, device),
        loaded=loaded,
        dtype=recipe.model.dtype,
        token_budget=recipe.trainer.token_budget,
        updates_per_batch=recipe.pipeline.updates_per_batch,
        old=_old_policy(recipe, trainer.policy, full_store),
    )


def evaluator_of(recipe: Recipe, store: WeightStore, device: str) -> OldEvaluator:
    """A second model that scores rollouts; ``store`` is that to which the learner publishes in the trainer's dtype."""
    loaded = _model_of(recipe, device)
    loaded.model.requires_grad_(False)
    policy = Policy(loaded, share_prompt=recipe.trainer.share_prompt)
    return OldEvaluator(_scorer(recipe, policy), store)


def _model_of(recipe: Recipe, device: str) -> LoadedModel:
    """The model as it is trained: in the trainer's dtype, with its adapter if it has one."""
    loaded = load_model(recipe.model.path, dtype=recipe.model.dtype, device=device)
    convert_weights(loaded.model, DTYPES[recipe.trainer.dtype])
    if recipe.model.lora is not None:
        adapt(loaded.model, recipe.model.lora, dtype=DTYPES[recipe.engine.dtype], seed=recipe.run.seed)
    return loaded


def versions_held(recipe: Recipe) -> int:
    """Versions that a store in the trainer's dtype must keep, and that the trainer or an evaluator holds at most."""
    return most_versions(recipe.pipeline.allowed, recipe.pipeline.lag)


def _old_policy(recipe: Recipe, policy: Policy, full_store: WeightStore | None) -> OldPolicy | None:
    options, schedule = recipe.old, recipe.pipeline
    reach = schedule.allowed - schedule.updates_per_batch + 2
    rescoring = Rescoring(policy=policy, temperature=recipe.engine.temperature, cost=Cost())
    if options.strategy == "snapshots":
        return Snapshots(rescoring, WeightCopies(policy.model, versions_held(recipe), options.where), reach)
    if options.strategy == "interruption":
        return Acquisition(rescoring, _scorer(recipe, policy), WeightCopies(policy.model, most=1))
    if options.strategy == "evaluator":
        if full_store is None:
            raise ConfigError(
                "old.strategy = 'evaluator' needs a placement that gives it a model of its own, and this one does not: "
                "set old.strategy = 'snapshots'"
            )
        return Evaluated(policy, full_store, versions_held(recipe), reach)
    return None


def _scorer(recipe: Recipe, policy: Policy) -> Scorer:
    replays = routing_of(recipe.algorithm), support_of(recipe.algorithm)
    return Scorer(policy, recipe.trainer.token_budget, recipe.engine.temperature, *replays)


def routing_of(algorithm: Algorithm) -> Routing | None:
    """How the engine's routes are replayed, if they are."""
    routings = (replay for replay in algorithm.replay if isinstance(replay, Routing))
    return next((routing for routing in routings if routing.source == "engine"), None)


def support_of(algorithm: Algorithm) -> Support | None:
    """How what the engine samples among is replayed, if it is."""
    return next((replay for replay in algorithm.replay if isinstance(replay, Support)), None)


def _trainer(recipe: Recipe, loaded: LoadedModel, device: str) -> Trainer:
    reference = None
    if recipe.algorithm.kl is not None:
        frozen = load_model(recipe.model.reference or recipe.model.path, dtype=recipe.model.dtype, device=device)
        _check_reference(loaded, frozen)
        convert_weights(frozen.model, DTYPES[recipe.trainer.dtype])
        frozen.model.requires_grad_(False)
        reference = Policy(frozen, share_prompt=recipe.trainer.share_prompt)
    return Trainer(
        Policy(
            loaded,
            gradient_checkpointing=recipe.trainer.gradient_checkpointing,
            share_prompt=recipe.trainer.share_prompt,
        ),
        recipe.algorithm,
        recipe.trainer,
        reference=reference,
        temperature=recipe.engine.temperature,
        limits=(recipe.run.steps * recipe.pipeline.updates_per_batch, recipe.pipeline.allowed),
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


def _embedded(options: EngineOptions) -> Torch:
    """The recipe's engine if it is the embedded one, else that in the same number format."""
    if isinstance(options, Torch):
        return options
    return Torch(dtype=options.dtype, max_tokens=options.max_tokens, max_rows=options.max_rows)


def _evaluator(
    recipe: Recipe, loaded: LoadedModel, device: str
) -> Callable[[int, Mapping[str, Tensor]], Awaitable[Evaluation]]:
    """Evaluates any weights of the model, in an embedded engine of its own, whatever samples the rollouts."""
    options, store = recipe.eval, MemoryStore(recipe.engine.dtype)
    task = asked_of(recipe)
    criterion = criterion_of(task[1], options.reward)
    protocol = protocol_of(options, task[0], criterion, seed=recipe.run.seed, max_tokens=recipe.engine.max_tokens)
    source = prompts_of(task, loaded, protocol.max_tokens, "heldout", recipe.run.seed)
    questions = evaluation_set(source, options.prompts, protocol)
    engine = _embedded(recipe.engine).open(
        recipe.model.path, store=store, clock=FreeClock(), device=device, lora=recipe.model.lora
    )
    return Evaluator(engine, store, protocol, questions, judge_by(reader_of(loaded), criterion))
