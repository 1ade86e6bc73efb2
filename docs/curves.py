"""What a rule does to a token's gradient, by the ratio: computed by the rule itself. No drawing here."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from tether.core.examples import tokens_of
from tether.core.ratio import edge_log_ratio
from tether.core.rule import PolicyTokens, Rule
from tether.core.statistics import Statistics
from tether.core.surrogate import effective_radius
from tether.registry import KERNELS, RULES

WHOLE: Final = (0.05, 20.0)
"""Ratios that most pictures show."""
POINTS: Final = 601
EPSILON: Final = 0.2
"""PPO's radius, where SAT's is drawn."""
PROBABILITIES: Final = (0.9, 0.5, 0.1, 0.001)
"""Of the token under the behavior policy."""
CHECKED: Final = (0.06, 0.12, 0.35, 0.65, 0.91, 1.07, 1.33, 2.2, 4.2, 7.0, 15.0)
"""Ratios at which a drawn picture is compared with the rule as it is; away from where the usual bounds lie."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {"drpo": {"delta": 0.15}}
"""Options of a picture, where the usual ones would show a straight line."""
MEASURED: Final[Mapping[str, Mapping[str, Any]]] = {
    "AbsoluteQuantile": {"q = 0 (PPO)": 0.0, "q = 0.1": 0.1, "q = 0.02": 0.02},
    "SecondMomentLimit": {"tau = 0.8": 0.8, "tau = 0.5": 0.5},
    "BalancedBounds": {"0.6 .. 1.2": (0.6, 1.2), "0.8 .. 1.6": (0.8, 1.6)},
    "GroupExpectation": {"": ((0.0,), (math.log(0.1),))},
}
"""What a scope is taken to have measured, by the statistic: its name in the legend, and the number."""
APART: Final[Mapping[str, tuple[str, Sequence[float]]]] = {"sat-edge": ("q = 0.1", (1.1, 1.0, 0.9))}
"""For a rule that looks at proximal and behavior at once: one of the above, and where the proximal stands, in units of
the behavior's probability."""
NEAR: Final = ("AbsoluteQuantile",)
"""Statistics whose rules differ from PPO near ratio 1 only, so that a picture shows no more than that."""
NEIGHBORHOOD: Final = (1 / 1.4, 1.4)


class Line(NamedTuple):
    """Gradient weights of one kind of token, one a ratio."""

    label: str
    """What sets it apart from the others of the picture; empty if it is alone."""
    sign: int
    """Of the advantage."""
    ratio: list[float]
    weight: list[float]
    """``d objective / d logp``, divided by ``|A|``."""


class Case(NamedTuple):
    """What the tokens of a line share."""

    label: str
    mu: float
    stats: Statistics
    apart: float = 1.0
    """Probability under the proximal policy, in units of mu."""


def shown(name: str) -> Rule:
    """The rule as its picture has it."""
    rule: Rule = RULES.build(name, **OPTIONS.get(name, {}))
    return rule


def reach(name: str) -> tuple[float, float]:
    """Smallest and largest ratio of a rule's picture."""
    needs = shown(name).traits.needs
    return NEIGHBORHOOD if any(type(need).__name__ in NEAR for need in needs) else WHOLE


def lines_of(name: str) -> list[Line]:
    """Every line of a rule's picture: by what was measured, and by the token's probability where that matters."""
    least, most = map(math.log10, reach(name))
    return _lines(name, torch.logspace(least, most, POINTS, dtype=torch.float64).tolist())


def samples_of(name: str) -> str:
    """A few weights in words: what a picture says about itself, and is compared by.

    ``A>0: 0.06:0.06 0.12:0.12 ...; A<0: ...``
    """
    return "; ".join(
        f"{line.label + ', ' if line.label else ''}A{'>' if line.sign > 0 else '<'}0: "
        + " ".join(f"{r:g}:{w:.3g}" for r, w in zip(line.ratio, line.weight, strict=True))
        for line in _lines(name, CHECKED)
    )


def kernels_shown() -> str:
    """Contractions and radii in words: what the picture says about itself, and is compared by."""
    far = torch.tensor([1.5, 3.0], dtype=torch.float64)
    return "; ".join(
        f"{name}: "
        + " ".join(f"{u:g}:{psi:.3g}" for u, psi in zip(far, cls()(far.clone(), torch.ones_like(far)), strict=True))
        + f", radius at q = 0.02: {effective_radius(0.02, (EPSILON, EPSILON), cls())[1]:.3g}"
        for name, cls in KERNELS.items()
    )


def weights(rule: Rule, case: Case, sign: int, ratios: Sequence[float]) -> list[float]:
    """Gradient weights of responses of one token, all of one group, at each ratio of pi and proximal."""
    d = torch.tensor(ratios, dtype=torch.float64).log()
    tokens, _ = tokens_of(log_ratio=d.tolist(), advantage=[float(sign)] * len(d))
    mu, nought = torch.full_like(tokens.logp_behavior, math.log(case.mu)), torch.zeros_like(tokens.group)
    proximal = mu + math.log(case.apart)
    tokens = dataclasses.replace(tokens, logp_behavior=mu, logp_proximal=proximal, group=nought, turn=nought)
    logp = (d + math.log(case.mu * case.apart)).float().requires_grad_()
    ratio = edge_log_ratio(rule.traits.reads, logp, tokens, rule.traits.level or "token")
    out = rule(ratio, PolicyTokens(logp), tokens, case.stats)
    gradient: Tensor = torch.autograd.grad(out.objective.sum(), logp)[0]
    return gradient.tolist()


def _lines(name: str, ratios: Sequence[float]) -> list[Line]:
    cases = _cases(name)
    return [
        Line(case.label if len(cases) > 1 else "", sign, within, weights(shown(name), case, sign, within))
        for sign in (1, -1)
        for case in cases
        for within in [[r for r in ratios if r * case.mu * case.apart <= 1]]
    ]


def _cases(name: str) -> list[Case]:
    scopes, least = _scopes(shown(name)), PROBABILITIES[-1]  # the one that reaches every ratio
    if name in APART:
        measured, places = APART[name]
        return [Case(f"proximal / mu = {x:g}", least, scopes[measured], x) for x in places]
    by_mu = [Case(f"mu = {mu:g}", mu, next(iter(scopes.values()))) for mu in PROBABILITIES]
    if _differ(shown(name), by_mu):
        return by_mu
    return [Case(measured, least, stats) for measured, stats in scopes.items()]


def _scopes(rule: Rule) -> dict[str, Statistics]:
    if not rule.traits.needs:
        return {"": Statistics({})}
    (statistic,) = rule.traits.needs
    kind = type(statistic).__name__
    if kind not in MEASURED:
        sys.exit(f"a picture needs numbers for the statistic {kind}: give some in MEASURED of docs/curves.py")
    return {label: Statistics({statistic: torch.tensor(value)}) for label, value in MEASURED[kind].items()}


def _differ(rule: Rule, cases: Sequence[Case]) -> bool:
    reached = [r for r in CHECKED if r * max(PROBABILITIES) <= 1]
    at = torch.tensor([[weights(rule, case, sign, reached) for sign in (1, -1)] for case in cases])
    return not at.allclose(at[:1], rtol=1e-3)
