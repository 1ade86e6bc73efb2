"""tether: asynchronous reinforcement learning of language models that stays stable when the data are stale.

The public names are imported on first use, so that ``import tether`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tether.config.build import build, train
    from tether.config.presets import PRESETS
    from tether.config.recipe import Recipe, load
    from tether.core.aggregation import Denominator
    from tether.core.algorithm import Algorithm
    from tether.core.loss import LossTerms, measure_scope, policy_loss
    from tether.core.rule import PolicyTokens, Surrogate, Traits
    from tether.core.statistics import Statistics
    from tether.core.surrogate import effective_radius
    from tether.core.tokens import TokenBatch
    from tether.journal.reader import RunView
    from tether.models.loading import load_model
    from tether.rules.ppo import PPO
    from tether.rules.sat import SAT

_HOME = {
    "Algorithm": "tether.core.algorithm",
    "Denominator": "tether.core.aggregation",
    "LossTerms": "tether.core.loss",
    "PPO": "tether.rules.ppo",
    "PRESETS": "tether.config.presets",
    "PolicyTokens": "tether.core.rule",
    "Recipe": "tether.config.recipe",
    "RunView": "tether.journal.reader",
    "SAT": "tether.rules.sat",
    "Statistics": "tether.core.statistics",
    "Surrogate": "tether.core.rule",
    "TokenBatch": "tether.core.tokens",
    "Traits": "tether.core.rule",
    "build": "tether.config.build",
    "effective_radius": "tether.core.surrogate",
    "load": "tether.config.recipe",
    "load_model": "tether.models.loading",
    "measure_scope": "tether.core.loss",
    "policy_loss": "tether.core.loss",
    "train": "tether.config.build",
}

__all__ = [
    "PPO",
    "PRESETS",
    "SAT",
    "Algorithm",
    "Denominator",
    "LossTerms",
    "PolicyTokens",
    "Recipe",
    "RunView",
    "Statistics",
    "Surrogate",
    "TokenBatch",
    "Traits",
    "build",
    "effective_radius",
    "load",
    "load_model",
    "measure_scope",
    "policy_loss",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tether' has no attribute {name!r}; it has {', '.join(sorted(_HOME))}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME)
