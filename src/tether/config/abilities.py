"""What a recipe asks of its engine, against what such an engine can do: refused before anything starts, with the way
out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tether.config.review import asked_inputs
from tether.errors import ConfigError
from tether.placement.inline import Inline
from tether.ports import EngineCapabilities, EngineOptions
from tether.records import Truncation
from tether.registry import ENGINES
from tether.replay.routing import Routing
from tether.replay.support import Support

if TYPE_CHECKING:
    from tether.config.recipe import Recipe


class Ask(NamedTuple):
    """One thing that an engine must be able to do."""

    what: str
    """As in "this engine cannot ..."."""
    because: str
    """The setting that asks for it."""
    can: Callable[[EngineCapabilities], bool]


def check_engine(recipe: Recipe) -> None:
    """Raise ``ConfigError`` if the engine of this recipe cannot do what the recipe needs, or would be misread."""
    engine = recipe.engine
    check_logp(engine.capabilities, engine)
    for ask in asks_of(recipe):
        if not ask.can(engine.capabilities):
            own = ENGINES.name_of(engine)
            kinds = [kind for kind, can in known_capabilities().items() if ask.can(can)]
            able = ", ".join(f"{kind} with other options" if kind == own else kind for kind in kinds) or "none"
            raise ConfigError(
                f"engine {own!r} cannot {ask.what}, which {ask.because} asks for; engines that "
                f"can: {able}. Set engine.kind to one of them, or drop the setting"
            )
    _check_support(recipe)


def check_opened(can: EngineCapabilities, recipe: Recipe) -> None:
    """Raise ``ConfigError`` if an engine, opened, can do less than its kind can at best."""
    check_logp(can, recipe.engine)
    for ask in asks_of(recipe):
        if not ask.can(can):
            raise ConfigError(
                f"engine {ENGINES.name_of(recipe.engine)!r}, as it was opened with this model, cannot {ask.what}, "
                f"which {ask.because} asks for; drop the setting, or take a model or a build of the engine that can"
            )


def engine_doubts_of(recipe: Recipe) -> list[str]:
    """What is known to be doubtful about the engine of this recipe, a sentence each."""
    kind, can, found = ENGINES.name_of(recipe.engine), recipe.engine.capabilities, []
    if not recipe.engine.truncation.is_none and not _replays_support(recipe):
        found.append(
            f"the engine samples among some ids only ({_shown(recipe.engine.truncation)}) and the trainer computes "
            "over all: every ratio is off by the probability that was cut away, by trainer.allow_support_mismatch"
        )
    if not can.seeded:
        found.append(
            f"engine {kind!r} draws by what else is in its batch: this run cannot be repeated, and one that was "
            "stopped does not go on to the same samples"
        )
    if not recipe.checks.prompts and kind != "torch":
        found.append(
            f"checks.prompts = 0 with engine {kind!r}: nothing proves that it holds what was published, nor that its "
            "log-probs are of the distribution sampled from"
        )
    return found


def check_logp(can: EngineCapabilities, engine: EngineOptions) -> None:
    """Refuse log-probs that are not of the distribution sampled from."""
    if can.logp == "raw" and (engine.temperature != 1 or not engine.truncation.is_none):
        raise ConfigError(
            "this engine reports log-probs of the model, before temperature and truncation, which are not those of the "
            f"distribution sampled from: engine.temperature must be 1 and top_k, top_p, min_p off; got temperature "
            f"{engine.temperature:g}, {_shown(engine.truncation)}. Make the engine report processed log-probs (vLLM: "
            "--logprobs-mode processed_logprobs), or set these"
        )


def known_capabilities() -> dict[str, EngineCapabilities]:
    """Of every kind of engine, with the options that it has by default; of one that needs some set, nothing."""
    found = {}
    for kind, cls in ENGINES.items():
        with suppress(ConfigError, TypeError):
            found[kind] = cls().capabilities
    return found


def asks_of(recipe: Recipe) -> Iterator[Ask]:
    """Everything that the recipe needs of its engine."""
    yield Ask("say which weights made each token", "training", lambda can: can.token_versions)
    if who := asked_inputs(recipe.algorithm).get("entropy_behavior"):
        yield Ask("report the entropy of each token's distribution", who, lambda can: can.entropy)
    for replay in recipe.algorithm.replay:
        if isinstance(replay, Routing) and replay.source == "engine":
            yield Ask("report the experts of each token", "algorithm.replay 'routing'", lambda can: can.routing)
        if isinstance(replay, Support):
            yield Ask("report what each token was sampled among", "algorithm.replay 'support'", lambda can: can.kept)
    if not recipe.engine.truncation.is_none:
        yield Ask("sample among some ids only", "engine.top_k, top_p or min_p", lambda can: can.truncation)
    way = recipe.pipeline.in_flight
    if recipe.pipeline.regime == "fully-async":
        yield Ask(f"{IN_FLIGHT[way]}", f"pipeline.in_flight = {way!r}", lambda can: way in can.in_flight)
    if recipe.model.lora is not None:
        yield Ask("take an adapter in the place of all weights", "model.lora_rank", lambda can: can.lora)
    if isinstance(recipe.placement, Inline):
        yield Ask("live in virtual time", "placement.kind = 'inline'", lambda can: can.virtual_time)


IN_FLIGHT = {
    "finish": "let completions finish before it takes new weights",
    "keep": "go on with completions under new weights on the cache that they have",
    "recompute": "go on with completions under new weights with their cache computed anew",
    "restart": "begin completions anew under new weights",
}
"""What the ways of ``pipeline.in_flight`` ask of an engine."""


def _check_support(recipe: Recipe) -> None:
    """A trainer that computes over other ids than the engine sampled among has ratios that are none."""
    cut, replayed = recipe.engine.truncation, _replays_support(recipe)
    if replayed and cut.is_none:
        raise ConfigError(
            "algorithm.replay 'support' has nothing to repeat: the engine samples from the whole vocabulary. Set "
            "engine.top_k, top_p or min_p, or leave 'support' out of algorithm.replay"
        )
    if cut.is_none or replayed or recipe.trainer.allow_support_mismatch:
        return
    raise ConfigError(
        f"the engine samples among some ids only ({_shown(cut)}) and renormalizes, the trainer computes over all of "
        "them: every ratio would be off by the probability that was cut away. Add {name = 'support'} to "
        "algorithm.replay, which has the trainer compute over the same ids; or switch truncation off (engine.top_k = "
        "0, top_p = 1.0, min_p = 0.0); or set trainer.allow_support_mismatch = true, and the lost mass is a metric"
    )


def _replays_support(recipe: Recipe) -> bool:
    return any(isinstance(replay, Support) for replay in recipe.algorithm.replay)


def _shown(cut: Truncation) -> str:
    """What is cut, by the names of settings.

    >>> _shown(Truncation(top_k=20, top_p=0.9)), _shown(Truncation())
    ('top_k = 20, top_p = 0.9', 'no truncation')
    """
    given = {"top_k": cut.top_k, "top_p": cut.top_p, "min_p": cut.min_p}
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return ", ".join(f"{name} = {value:g}" for name, value in given.items() if value != off[name]) or "no truncation"
