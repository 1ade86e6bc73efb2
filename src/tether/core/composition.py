"""What the factors of a recipe multiply to, and which products are refused or doubtful.

In logs the edges are summed, with the proximal replaced by the policy it stands for: with every clip, cap and mask open
the coefficient of ``A grad logp`` must be ``pi / behavior``, or on purpose ``pi / old``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tether.core.group_expectation import GroupExpectation
from tether.core.memory import Smoothed
from tether.core.proximal import Proximal
from tether.core.ratio import ENDS, Edge, Level
from tether.core.rule import Correction, Rule
from tether.core.statistics import Scope
from tether.errors import ConfigError
from tether.registry import CORRECTIONS, PROXIMALS, RULES

COMPLETE = {"pi": 1, "behavior": -1}
UPDATE_ONLY = {"pi": 1, "old": -1}


class Factor(NamedTuple):
    """A factor of the loss, for whoever asks what a recipe does."""

    name: str
    edge: Edge
    level: Level
    is_mask: bool


def factors_of(level: Level, rule: Rule, corrections: Sequence[Correction]) -> list[Factor]:
    """The rule, then the corrections, with what each reads."""
    named = [(RULES.name_of(rule), rule.traits), *((CORRECTIONS.name_of(c), c.traits) for c in corrections)]
    return [Factor(name, *traits.ratio(level), traits.is_mask) for name, traits in named]


def product_of(proximal: Proximal, factors: Sequence[Factor]) -> dict[str, int]:
    """The powers of the policies that the factors multiply to; masks are 0 or 1 and contribute nothing."""
    total: Counter[str] = Counter()
    for factor in factors:
        if not factor.is_mask:
            above, below = _ends(proximal, factor.edge)
            total[above] += 1
            total[below] -= 1
    return {policy: power for policy, power in total.items() if power}


def shown(product: dict[str, int]) -> str:
    """A product in words.

    >>> shown({"pi": 1, "behavior": -1}), shown({"pi": 1, "old": 1, "behavior": -2}), shown({})
    ('pi / behavior', 'pi old / behavior^2', '1')
    """

    def side(sign: int) -> str:
        powers = [(policy, abs(power)) for policy, power in product.items() if power * sign > 0]
        return " ".join(policy if power == 1 else f"{policy}^{power}" for policy, power in powers)

    above, below = side(1) or "1", side(-1)
    return f"{above} / {below}" if below else above


def check_composition(
    proximal: Proximal, level: Level, rule: Rule, corrections: Sequence[Correction], measure: Scope
) -> None:
    """Refuse a recipe that counts a mismatch twice or not at all, or whose parts cannot work together."""
    _check_level(level, rule)
    factors = factors_of(level, rule, corrections)
    names = [factor.name for factor in factors[1:]]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"a recipe takes each correction once; got {', '.join(sorted(repeated))} twice: keep one")
    _check_mixing(rule, factors)
    _check_edges(proximal, factors, corrections)
    _check_product(proximal, factors, corrections)
    everything = (rule.traits, *(c.traits for c in corrections))
    needs = [need for traits in everything for need in traits.needs]
    if measure not in ("step", "lagged") and any(isinstance(need, Smoothed) for need in needs):
        raise ConfigError(
            f"a running average goes on once an update, and measure = {measure!r} measures several times; "
            "use measure = 'step' or 'lagged'"
        )
    if measure != "step" and any(isinstance(need, GroupExpectation) for need in needs):
        raise ConfigError(
            f"a group's expectation is about all of its responses, and measure = {measure!r} may see some of them, or "
            f"others; use measure = 'step' with rule {factors[0].name!r}"
        )
    if rule.traits.measures == "weight" and proximal.stands_for == "behavior":
        raise ConfigError(
            f"rule {factors[0].name!r} measures proximal / behavior, which is always 1 with proximal "
            f"{PROXIMALS.name_of(proximal)!r}: measure another edge, or take another proximal policy"
        )


def doubts(level: Level, rule: Rule, corrections: Sequence[Correction]) -> list[str]:
    """What is allowed, and known to be doubtful: one sentence each."""
    found = []
    for factor, correction in zip(factors_of(level, rule, corrections)[1:], corrections, strict=True):
        traits = correction.traits
        if traits.is_literal:
            found.append(
                f"{factor.name} multiplies its weight into a ratio that already reads to the behavior policy, as its "
                "source writes it: what the engine does differently is counted twice"
            )
        if rule.traits.keeps_pull_back and not traits.keeps_pull_back:
            found.append(
                f"{factor.name} also drops tokens that move back towards the data, whose gradient the rule "
                f"{RULES.name_of(rule)} would keep"
            )
        same_level = level == factor.level
        if not traits.is_mask and not same_level:
            found.append(
                f"{factor.name} is a weight at level {factor.level} beside a ratio at level {level}: their product is "
                "pi/behavior at neither"
            )
        two_sided = traits.is_mask and not traits.is_one_sided
        if two_sided and same_level and level == "sequence" and factor.edge in ("total", rule.traits.reads):
            found.append(f"{factor.name} bounds the same number that the rule clips; the narrower of the two decides")
    return found


def _check_level(level: Level, rule: Rule) -> None:
    own = rule.traits.level
    if own not in (None, level):
        raise ConfigError(
            f"rule {RULES.name_of(rule)!r} is defined at level {own!r}; got {level!r}: set level = {own!r}"
        )


def _check_mixing(rule: Rule, factors: Sequence[Factor]) -> None:
    tokenwise = [factor.name for factor in factors[1:] if factor.level == "token"]
    if rule.traits.mixes_tokens and tokenwise:
        raise ConfigError(
            f"rule {factors[0].name!r} averages the ratios of a response, so what {', '.join(tokenwise)} takes from a "
            "token would leak back through the mean; leave it out, or use a rule that keeps tokens apart, such as ppo"
        )


def _check_edges(proximal: Proximal, factors: Sequence[Factor], corrections: Sequence[Correction]) -> None:
    dropping: dict[tuple[str, str, Level], str] = {}
    for factor, correction in zip(factors[1:], corrections, strict=True):
        if factor.edge == "weight" and proximal.stands_for == "behavior":
            raise ConfigError(_always_one(proximal, factor))
        traits = correction.traits
        drops = traits.is_mask or not traits.keeps_pull_back
        if not drops or traits.is_one_sided:
            continue
        other = dropping.setdefault((*_ends(proximal, factor.edge), factor.level), factor.name)
        if other != factor.name:
            raise ConfigError(
                f"{other} and {factor.name} both drop tokens by the same ratio ({factor.edge}, level {factor.level}); "
                "they are alternatives: keep one, or let one read another edge"
            )


def _always_one(proximal: Proximal, factor: Factor) -> str:
    name = PROXIMALS.name_of(proximal)
    if factor.is_mask:
        return (
            f"proximal {name!r} is the behavior policy, so {factor.name} would look at a ratio that is always 1 and "
            "drop nothing; let it read the edge 'total' or 'engine', or use proximal = 'anchor' or 'old' with a weight"
        )
    return (
        f"proximal {name!r} already gives the ratio pi/behavior, so {factor.name} would correct it a second time, by a "
        "ratio that is always 1; use proximal = 'anchor' or 'old' with it, let a mask read the edge 'total', or leave "
        "it out"
    )


def _check_product(proximal: Proximal, factors: Sequence[Factor], corrections: Sequence[Correction]) -> None:
    literal = [CORRECTIONS.name_of(c) for c in corrections if c.traits.is_literal]
    product = product_of(proximal, [factor for factor in factors if factor.name not in literal])
    if product == COMPLETE or (product == UPDATE_ONLY and not literal):
        return
    if literal:
        raise ConfigError(
            f"the literal form of {literal[0]} stands beside a ratio that is pi / behavior; here it is "
            f"{shown(product)}: use proximal = 'rollout' and no other weight, or leave literal out"
        )
    weights = ", ".join(factor.name for factor in factors[1:] if not factor.is_mask)
    way_out = (
        f"the weights {weights} correct the same thing more than once: keep one"
        if weights
        else f"with proximal {PROXIMALS.name_of(proximal)!r} the ratio cannot see how stale the data are: add a "
        "correction that reads the edge 'weight' (such as tis), or use proximal = 'rollout'"
    )
    raise ConfigError(f"this recipe weights the gradient by {shown(product)} instead of pi / behavior; {way_out}")


def _ends(proximal: Proximal, edge: Edge) -> tuple[str, str]:
    """Numerator and denominator, with the policy that the proximal stands for."""
    above, below = (proximal.stands_for if end == "proximal" else end for end in ENDS[edge])
    return above, below
