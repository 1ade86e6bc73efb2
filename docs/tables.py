"""The tables of ``docs/choosing.md``, from the plug-ins and presets themselves."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from curves import lines_of

from tether.config.bind import bind
from tether.config.presets import PRESETS, preset
from tether.config.recipe import Recipe, load
from tether.config.review import MISSING, PROVIDED, asked_inputs, doubts_of, missing_inputs
from tether.core.algorithm import Algorithm
from tether.core.composition import factors_of, product_of, shown
from tether.core.memory import Smoothed
from tether.core.ratio import ENDS, Edge
from tether.core.rule import Traits
from tether.core.statistics import Statistic
from tether.errors import ConfigError
from tether.registry import CORRECTIONS, KERNELS, PROXIMALS, REPLAYS, RULES, SCALES, STEP_SIZES, Registry

REQUIRED: Final[Mapping[str, Mapping[str, Any]]] = {
    "absolute": {"value": 0.02},
    "estr": {"threshold": 1.0},
    "seq-mean-token-sum-norm": {"horizon": 32},
}
"""Options without a default; their values do not show."""
COSTS: Final[Mapping[str, str]] = {
    "logp_anchor": "nothing: the forward pass of a batch's first update serves",
    "logp_old": "what `old.strategy` costs: copies of the weights and a forward pass a version, or a second model",
    "logp_average": "a forward pass a batch, a copy of the weights",
    "entropy_behavior": "an entropy a token, from the engine",
    "top_k_behavior": "K log-probs a token, from the engine",
    "top_k": "K log-probs a token, in the trainer",
}
"""Of an optional input, where a run has it or could."""
STATISTICS_COST: Final = "statistics (1)"
REPLAY_COST: Final = "the engine reports its choice token by token"
NONE: Final = "-"
ARXIV: Final = re.compile(r"arXiv:\s*(\d{4}\.\d{5})")


def rules() -> str:
    """Every rule."""
    return _table(
        ("rule", "what it is", "reads", "level", "cuts", "needs", "costs", "paper"),
        [
            (f"`{name}`", _what(cls), _reads(made), _levels(made), cuts, _needs(made), _costs(made), _paper(cls))
            for name, cls, made in _every(RULES)
            for cuts in [_cuts(name, made[0].traits)]
        ],
    )


def corrections() -> str:
    """Every weight and mask."""
    return _table(
        ("correction", "what it is", "reads", "level", "kind", "needs", "costs", "paper"),
        [
            (f"`{name}`", _what(cls), _reads(made), _levels(made), _kind(made), _needs(made), _costs(made), _paper(cls))
            for name, cls, made in _every(CORRECTIONS)
        ],
    )


def proximals() -> str:
    """Every denominator."""
    return _table(
        ("proximal", "what it is", "stands for", "needs", "costs", "paper"),
        [
            (
                f"`{name}`",
                _what(cls),
                made[0].stands_for,
                _joined(map(_input, made[0].inputs)),
                _cost_of(made[0].inputs),
                _paper(cls),
            )
            for name, cls, made in _every(PROXIMALS)
        ],
    )


def scales() -> str:
    """Every q of SAT."""
    return _table(
        ("scale", "what it is", "q", "needs", "costs", "paper"),
        [
            (
                f"`{name}`",
                _what(cls),
                "one a token" if made[0].is_per_token else "one for all",
                needs,
                cost,
                _paper(cls),
            )
            for name, cls, made in _every(SCALES)
            for needs in [_joined([*map(_statistic, made[0].needs), *map(_input, made[0].inputs)])]
            for cost in [STATISTICS_COST if made[0].needs else NONE]
        ],
    )


def kernels() -> str:
    """Every contraction of SAT."""
    return _table(
        ("kernel", "what it is", "paper"), [(f"`{name}`", _what(cls), _paper(cls)) for name, cls in KERNELS.items()]
    )


def step_sizes() -> str:
    """Every factor of the learning rate."""
    return _table(
        ("step size", "what it is", "reads", "level", "needs", "costs", "paper"),
        [
            (f"`{name}`", _what(cls), _reads(made), _levels(made), _needs(made), NONE, _paper(cls))
            for name, cls, made in _every(STEP_SIZES)
        ],
    )


def replays() -> str:
    """Everything that the trainer's forward pass takes over."""
    return _table(
        ("replay", "what it is", "costs", "paper"),
        [(f"`{name}`", _what(cls), REPLAY_COST, _paper(cls)) for name, cls in REPLAYS.items()],
    )


def presets() -> str:
    """Every preset, with what its factors multiply to and whether a run has all that it needs."""
    return _table(
        ("preset", "denominator", "level", "rule", "with", "product", "trains today"),
        [
            (f"`{name}`", proximal, table["level"], rule, _joined(_beside(table)), _product(name), _trains(name))
            for name, table in PRESETS.items()
            for proximal, rule in [(table["proximal"]["name"], table["rule"]["name"])]
        ],
    )


def _every(registry: Registry) -> Iterator[tuple[str, type, list[Any]]]:
    """Name, class, and an object for every combination of its choices, the usual one first."""
    for name, cls in registry.items():
        hints = get_type_hints(cls)
        choices = {
            f.name: get_args(hints[f.name]) for f in dataclasses.fields(cls) if get_origin(hints[f.name]) is Literal
        }
        usual = registry.build(name, **REQUIRED.get(name, {}))
        made = [usual]
        for values in itertools.product(*choices.values()):
            try:
                made.append(registry.build(name, **REQUIRED.get(name, {}), **dict(zip(choices, values, strict=True))))
            except ValueError:  # choices that do not go together
                continue
        yield name, cls, made


def _what(cls: type) -> str:
    """First line of a docstring, papers and shapes aside."""
    line = (inspect.getdoc(cls) or "").splitlines()[0]
    line = re.sub(r" \([^()]*arXiv[^()]*\)| ``\[.*\] -> \[.*\]``", "", line)
    return line.rstrip(". ")


def _paper(cls: type) -> str:
    text = f"{inspect.getdoc(cls)}\n{inspect.getdoc(inspect.getmodule(cls))}"
    return ", ".join(f"[{n}](https://arxiv.org/abs/{n})" for n in dict.fromkeys(ARXIV.findall(text))) or NONE


def _reads(made: Sequence[Any]) -> str:
    """Edges, the usual one first, each with its two policies."""
    edges: dict[Edge, None] = dict.fromkeys(one.traits.reads for one in made)
    return "; or ".join(f"{edge} = {'/'.join(ENDS[edge])}" for edge in edges)


def _levels(made: Sequence[Any]) -> str:
    return " or ".join(dict.fromkeys(one.traits.level or "any" for one in made))


def _cuts(name: str, traits: Traits) -> str:
    """What loses its gradient: of its picture the outward tokens, of its traits those that move back."""
    lines = lines_of(name)
    outward = any(w == 0 for x in lines for r, w in zip(x.ratio, x.weight, strict=True) if x.sign * (r - 1) > 0)
    if traits.keeps_pull_back:
        return "outward; keeps pull-back" if outward else "nothing"
    return f"{'outward' if outward else 'far out'}; pull-back too"


def _kind(made: Sequence[Any]) -> str:
    first: Traits = made[0].traits
    kind = "weight" if not first.is_mask else "mask, one-sided" if first.is_one_sided else "mask"
    other = " (or mask)" if not first.is_mask and any(one.traits.is_mask for one in made) else ""
    return f"{kind}{other}; {'keeps pull-back' if first.keeps_pull_back else 'drops pull-back too'}"


def _needs(made: Sequence[Any]) -> str:
    """Statistics and inputs; what only some of its choices need is named with them."""
    usual: Traits = made[0].traits
    statistics = [_statistic(need) for need in usual.needs]
    asked = _asked(usual)
    extra: dict[str, list[str]] = {}
    for name in dict.fromkeys(name for one in made for name in _asked(one.traits) if name not in asked):
        extra.setdefault(_choices(made, name), []).append(_input(name))
    sometimes = (f"{' and '.join(names)} with {choices}" for choices, names in extra.items())
    return _joined([*statistics, *map(_input, asked), *sometimes])


def _choices(made: Sequence[Any], wanted: str) -> str:
    """The option whose values ask for an input, and those values."""
    asking = [one for one in made if wanted in _asked(one.traits)]
    others = [one for one in made if wanted not in _asked(one.traits)]
    for f in dataclasses.fields(made[0]):
        values = dict.fromkeys(getattr(one, f.name) for one in asking)
        if not any(getattr(one, f.name) in values for one in others):
            return f"`{f.name}` " + " or ".join(f"`{value}`" for value in values)
    sys.exit(f"no one option of {made[0]} decides whether it needs {wanted}: teach docs/tables.py to say when")


def _asked(traits: Traits) -> tuple[str, ...]:
    edges = (traits.reads, traits.measures or traits.reads)
    old = ("logp_old",) if any("old" in ENDS[edge] for edge in edges) else ()
    return tuple(dict.fromkeys((*traits.inputs, *old)))


def _input(name: str) -> str:
    lacking = name in MISSING or name not in PROVIDED
    return f"`{name}` (**missing**)" if lacking else f"`{name}`"


def _statistic(need: Statistic) -> str:
    """``AbsoluteQuantile`` as ``absolute quantile``."""
    kind = type(need.statistic).__name__ if isinstance(need, Smoothed) else type(need).__name__
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind).lower()
    return f"running average of {words}" if isinstance(need, Smoothed) else words


def _costs(made: Sequence[Any]) -> str:
    usual: Traits = made[0].traits
    return _joined([STATISTICS_COST] * bool(usual.needs) + [COSTS[name] for name in _asked(usual) if name in COSTS])


def _cost_of(inputs: Sequence[str]) -> str:
    return _joined(COSTS[name] for name in inputs if name in COSTS)


def _beside(table: Mapping[str, Any]) -> list[str]:
    """What a preset has beside its rule."""
    scale = table["rule"].get("scale")
    parts = [*([scale] if scale else []), *table.get("corrections", ())]
    parts += [table[key] for key in ("step_size", "kl") if key in table]
    return [part["name"] for part in parts + table.get("replay", [])]


def _product(name: str) -> str:
    algorithm = _algorithm(name)
    if algorithm is None:
        return NONE
    return shown(product_of(algorithm.proximal, factors_of(algorithm.level, algorithm.rule, algorithm.corrections)))


def _algorithm(name: str) -> Algorithm | None:
    table = preset(name)
    for part in (table["aggregation"], table["rule"].get("scale", {}), *table.get("corrections", ())):
        part.update(REQUIRED.get(part.get("name"), {}))
    try:
        return bind(Algorithm, table, "algorithm")
    except ConfigError:
        return None


def _trains(name: str) -> str:
    """Whether a run of the quickstart would start with it, and what is missing if not."""
    own = _algorithm(name)
    is_old = own is not None and "logp_old" in asked_inputs(own)
    settings = ["old.strategy=snapshots"] if is_old else []
    try:
        recipe: Recipe = load("quickstart", [f"algorithm.preset={name}", *settings])
    except ConfigError as error:
        reason = re.split(r"[,;:] ", re.sub(r"^\[.*\] ", "", str(error)))[0]
        lacks = own is None or missing_inputs(own)
        return f"no: {reason}" if lacks else f"not as it is: {reason}"
    return ("yes, doubtful (2)" if doubts_of(recipe) else "yes") + (", with `old.strategy`" if is_old else "")


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words)) or NONE


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """Docstring markup as Markdown, in a cell of a table."""
    return text.replace("``", "`").replace("|", "\\|")
