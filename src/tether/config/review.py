"""What a recipe's algorithm needs and does beyond its own algebra: refused, or doubtful, with the reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from tether.core.composition import doubts
from tether.core.ratio import ENDS
from tether.errors import ConfigError
from tether.registry import CORRECTIONS, PROXIMALS, RULES
from tether.replay.routing import Routing
from tether.scales.per_staleness import PerStaleness
from tether.scales.per_turn import PerTurn
from tether.scales.quantile import Quantile

if TYPE_CHECKING:
    from tether.config.recipe import Recipe
    from tether.core.algorithm import Algorithm

PROVIDED: Final = frozenset({"logp_anchor", "logp_average", "logp_old", "entropy_behavior", "entropy"})
"""Optional fields that a run fills, ``logp_old`` where ``[old]`` says how."""
MISSING: Final = {
    "top_k": "the log-probs of the engine's most probable tokens, which a run does not carry to the trainer yet; "
    "algorithm.rule.divergence = 'tv' or 'kl' need none",
    "top_k_behavior": "the log-probs of the engine's most probable tokens, which a run does not carry to the trainer "
    "yet; algorithm.rule.divergence = 'tv' or 'kl' need none",
    "turn": "turns of tool use, which no task has yet; algorithm.rule.scale = 'quantile' needs none",
}
"""What is meant by an input that nobody provides, and the way out."""
ASK_OLD: Final = (
    "old log-probs, the trainer's own at the weights that sampled each token: set old.strategy = 'snapshots' (copies "
    "of past weights), 'evaluator' (a second model) or 'interruption' (scored before every update, each published); or "
    "take algorithm.proximal = 'ewma', the running average of the weights, which needs none"
)


def missing_inputs(algorithm: Algorithm) -> dict[str, str]:
    """Inputs that no part of a run provides, each with the name of what asks for it."""
    return {name: who for name, who in asked_inputs(algorithm).items() if name not in PROVIDED}


def asked_inputs(algorithm: Algorithm) -> dict[str, str]:
    """Optional inputs, each with the name of what asks for it."""
    asked = {f"proximal {PROXIMALS.name_of(algorithm.proximal)!r}": set(algorithm.proximal.inputs)}
    names = [
        f"rule {RULES.name_of(algorithm.rule)!r}",
        *(f"correction {CORRECTIONS.name_of(c)!r}" for c in algorithm.corrections),
    ]
    for name, traits in zip(names, algorithm.traits, strict=True):
        edges = (traits.reads, traits.measures or traits.reads)
        old = {"logp_old"} if any("old" in ENDS[edge] for edge in edges) else set()
        asked[name] = {*traits.inputs, *old}
    return {name: who for who, wanted in asked.items() for name in sorted(wanted)}


def check_algorithm(recipe: Recipe) -> None:
    """Refuse what cannot work in this run, and outside of ``paper/`` what would do nothing."""
    if missing := missing_inputs(recipe.algorithm):
        name, who = next(iter(missing.items()))
        raise ConfigError(f"{who} needs {MISSING.get(name, name)}")
    if recipe.old.strategy == "none" and (asking := asked_inputs(recipe.algorithm).get("logp_old")):
        raise ConfigError(f"{asking} needs {ASK_OLD}")
    if not _is_papers(recipe) and (inert := _inert(recipe)):
        raise ConfigError(inert[0])
    _check_routing(recipe)
    for correction in recipe.algorithm.corrections:
        if correction.traits.reads == "clipped" and _is_always_one(recipe):
            raise ConfigError(
                f"correction {CORRECTIONS.name_of(correction)!r} reads pi / anchor, which one update a batch makes 1 "
                "everywhere: let it read another edge"
            )


def _check_routing(recipe: Recipe) -> None:
    """Refuse a replay that no pass would see."""
    sources = [replay.source for replay in recipe.algorithm.replay if isinstance(replay, Routing)]
    if "trainer" in sources and recipe.pipeline.updates_per_batch == 1:
        raise ConfigError(
            "algorithm.replay 'routing' with source = 'trainer' repeats the routes of a batch's first update in its "
            "later ones, and pipeline.updates_per_batch = 1 has none: set it to 2 or more, or source = 'engine' to "
            "repeat the engine's routes (presets that end in -r3)"
        )


def check_old(recipe: Recipe) -> None:
    """Refuse a way to acquire old log-probs that the schedule leaves no room for."""
    pipeline = recipe.pipeline
    if recipe.old.strategy == "interruption" and (pipeline.lag, pipeline.updates_per_batch) != (1, 1):
        raise ConfigError(
            "old.strategy = 'interruption' scores what was sampled before each update, so every update must be "
            f"published; got pipeline.lag = {pipeline.lag} with pipeline.updates_per_batch = "
            f"{pipeline.updates_per_batch}: set both to 1, or old.strategy = 'snapshots'"
        )


def doubts_of(recipe: Recipe) -> list[str]:
    """What this recipe does that is known to be doubtful, a sentence each."""
    algorithm = recipe.algorithm
    found = doubts(algorithm.level, algorithm.rule, algorithm.corrections)
    if _is_papers(recipe):
        found += _inert(recipe)
    reads = {traits.reads for traits in algorithm.traits}
    if not reads & {"clipped", "weight"} and algorithm.proximal.stands_for != "behavior":
        found.append(
            f"nothing in this recipe reads proximal {PROXIMALS.name_of(algorithm.proximal)!r}: the rule "
            f"{RULES.name_of(algorithm.rule)!r} stands against the behavior policy by itself"
        )
    if _is_always_one(recipe) and algorithm.rule.traits.reads == "clipped":
        found.append(
            f"proximal {PROXIMALS.name_of(algorithm.proximal)!r} with one update a batch makes every clipped ratio 1: "
            "nothing is ever clipped, and what remains is the gradient of REINFORCE times the weights"
        )
    rank = _fewest_responses(algorithm)
    room = recipe.trainer.token_budget // recipe.engine.max_tokens
    if algorithm.measure == "micro-batch" and room < rank:
        found.append(
            f"a micro-batch of longest answers holds {room} responses, and below {rank} none is ever gated: raise "
            "trainer.token_budget, or measure over the step"
        )
    return found


def _inert(recipe: Recipe) -> list[str]:
    """Why the statistics that the rule asks for would never change anything."""
    algorithm = recipe.algorithm
    found = []
    if algorithm.rule.traits.needs and algorithm.rule.traits.reads == "clipped" and _is_always_one(recipe):
        found.append(
            f"rule {RULES.name_of(algorithm.rule)!r} cuts ratios by what it measures, and against proximal "
            f"{PROXIMALS.name_of(algorithm.proximal)!r} with one update a batch every ratio is 1: use "
            "proximal = 'rollout'"
        )
    rank, responses = _fewest_responses(algorithm), recipe.pipeline.prompts_per_step * recipe.pipeline.group_size
    if responses < rank:
        found.append(
            f"rule {RULES.name_of(algorithm.rule)!r} at level {algorithm.level!r} gates nothing with fewer than {rank} "
            f"responses in its scope; a step has {responses}: raise pipeline.prompts_per_step or group_size, or set "
            "level = 'token'"
        )
    return found


def _is_always_one(recipe: Recipe) -> bool:
    return recipe.algorithm.proximal.stands_for == "anchor" and recipe.pipeline.updates_per_batch == 1


def _fewest_responses(algorithm: Algorithm) -> int:
    """Responses below which the largest one alone holds the quantile of its own scope; 0 where that plays no part: a
    quantile of other updates, or one that is held below a ceiling, may be exceeded by all of them."""
    if algorithm.level == "token" or algorithm.measure == "lagged":
        return 0
    scale = getattr(algorithm.rule, "scale", None)
    levels = [scale.level] if isinstance(scale, Quantile | PerStaleness | PerTurn) and scale.level < 1 else []
    return max((math.ceil(1 / (1 - level) - 1e-9) for level in levels), default=0)


def _is_papers(recipe: Recipe) -> bool:
    return recipe.preset.startswith("paper/")
