"""Named algorithms: every one a row of independent choices, never a branch in the loss.

Presets under ``paper/`` take whole-batch statistics over the micro-batch, as the paper's text says; all others over
the whole step, so that they do not depend on how the step was packed.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tether.errors import UnknownNameError

Table = dict[str, Any]


def _preset(level: str, rule: str, aggregation: str, advantage: str) -> Table:
    return {
        "proximal": {"name": "rollout"},
        "level": level,
        "rule": {"name": rule, "epsilon_low": 0.2, "epsilon_high": 0.2},
        "aggregation": {"name": aggregation},
        "advantage": {"name": advantage},
        "measure": "step",
    }


_OURS: dict[str, Table] = {
    "grpo": _preset("token", "ppo", "seq-mean-token-mean", "grpo"),
    "dr-grpo": _preset("token", "ppo", "seq-mean-token-sum-norm", "dr-grpo"),
    "gspo": _preset("sequence", "ppo", "seq-mean-token-mean", "grpo"),
    "sat-grpo": _preset("token", "sat", "seq-mean-token-mean", "grpo"),
    "sat-gspo": _preset("sequence", "sat", "seq-mean-token-mean", "grpo"),
}

PRESETS: dict[str, Table] = {
    **_OURS,
    **{f"paper/{name}": {**table, "measure": "micro-batch"} for name, table in _OURS.items()},
}

SUMMARIES: dict[str, str] = {
    "grpo": "PPO's clip on token ratios, group-normalized advantages (arXiv:2402.03300)",
    "dr-grpo": "GRPO without the two length and spread normalizations (arXiv:2503.20783)",
    "gspo": "PPO's clip on one ratio per response (arXiv:2507.18071), radii of the SAT study",
    "sat-grpo": "GRPO whose radius contracts on the tokens with the largest mismatch (arXiv:2607.18722)",
    "sat-gspo": "GSPO whose radius contracts on the responses with the largest mismatch (arXiv:2607.18722)",
}


def preset(name: str) -> Table:
    """A copy of a preset's table.

    >>> preset("sat-gspo")["level"], preset("paper/sat-gspo")["measure"]
    ('sequence', 'micro-batch')
    """
    if name not in PRESETS:
        raise UnknownNameError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    return deepcopy(PRESETS[name])


def summary(name: str) -> str:
    """What a preset is, in a line."""
    return SUMMARIES[name.removeprefix("paper/")] + (", micro-batch scope" if name.startswith("paper/") else "")
