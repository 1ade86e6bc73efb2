"""Named algorithms: every one a row of independent choices, never a branch in the loss.

Presets under ``paper/`` are the cells of the SAT study under its settings (arXiv:2607.18722): statistics over the
micro-batch, as its text says, and its KL penalty. All others are tether's: statistics over the whole step, so that they
do not depend on how the step was packed, and no penalty.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from typing import Any

from tether.errors import UnknownNameError

Table = dict[str, Any]

CLIP: Table = {"epsilon_low": 0.2, "epsilon_high": 0.2}
"""Radii of the SAT study, for every rule that has radii."""
PAPER: Table = {"measure": "micro-batch", "kl": {"name": "low_var_kl", "coefficient": 1e-3}}
"""What the study's cells share, and ours do not."""
R3: Table = {"replay": [{"name": "routing"}]}
R2: Table = {"replay": [{"name": "routing", "source": "trainer"}]}


def _preset(rule: str, level: str = "token", options: Mapping[str, Any] | None = None, **choices: Any) -> Table:
    return {
        "proximal": {"name": "rollout"},
        "level": level,
        "rule": {"name": rule, **({} if options is None else options)},
        "aggregation": {"name": "seq-mean-token-mean"},
        "advantage": {"name": "grpo"},
        "measure": "step",
        **choices,
    }


_CENTRED: Table = {"aggregation": {"name": "seq-mean-token-sum-norm"}, "advantage": {"name": "dr-grpo"}}
"""No division by the spread of rewards, none by the length of a response."""


def _sat(rule: str = "sat", **options: Any) -> Table:
    return _preset(rule, options={**CLIP, **options})


def _corrected(correction: str, level: str = "token", proximal: str = "rollout", **options: Any) -> Table:
    """PPO's clip with one correction."""
    corrections = [{"name": correction, **options}]
    return _preset("ppo", level, CLIP, proximal={"name": proximal}, corrections=corrections)


_GRID: dict[str, tuple[str, Table]] = {
    "grpo": (
        "PPO's clip on token ratios, group-normalized advantages (arXiv:2402.03300)",
        _preset("ppo", options=CLIP),
    ),
    "gspo": (
        "PPO's clip on one ratio per response (arXiv:2507.18071), radii of the SAT study",
        _preset("ppo", "sequence", CLIP),
    ),
    "grpo-tis": (
        "REINFORCE with the token ratio truncated at 5, the TIS of the SAT study's text (arXiv:2512.01374)",
        _preset("tis-reinforce"),
    ),
    "gspo-tis": (
        "REINFORCE with the response's ratio truncated at 5 (arXiv:2512.01374)",
        _preset("tis-reinforce", "sequence"),
    ),
    "dppo": (
        "drops outward tokens whose probability moved by more than 0.15 (arXiv:2602.04879), official form",
        _preset("dppo"),
    ),
    "sat-grpo": (
        "GRPO whose radius contracts on the tokens with the largest mismatch (arXiv:2607.18722)",
        _preset("sat", options=CLIP),
    ),
    "sat-gspo": (
        "GSPO whose radius contracts on the responses with the largest mismatch (arXiv:2607.18722)",
        _preset("sat", "sequence", CLIP),
    ),
}
"""The study's rows without routing replay."""
_REPLAYED = ("grpo", "gspo", "grpo-tis", "gspo-tis", "sat-grpo", "sat-gspo")

_METHODS: dict[str, tuple[str, Table]] = {
    # other ways to cut, on pi / behavior
    "dapo": (
        "GRPO with a wider radius above 1 and every token counted the same (arXiv:2503.14476)",
        _preset("ppo", options={"epsilon_low": 0.2, "epsilon_high": 0.28}, aggregation={"name": "token-mean"}),
    ),
    "dual-clip": (
        "GRPO that also ends the pull-back of tokens with A < 0 beyond ratio 3 (arXiv:1912.09729)",
        _preset("ppo", options={**CLIP, "dual_clip": 3.0}),
    ),
    "dr-grpo": (
        "GRPO without the two length and spread normalizations (arXiv:2503.20783)",
        _preset("ppo", options=CLIP, **_CENTRED),
    ),
    "luspo": (
        "GSPO whose responses count by their length (arXiv:2602.05261)",
        _preset("ppo", "sequence", CLIP, aggregation={"name": "seq-mean-token-sum"}),
    ),
    "dppo-kl": (
        "DPPO by the binary KL divergence, at 0.05",
        _preset("dppo", options={"divergence": "kl"}),
    ),
    "dppo-top-k": (
        "DPPO by the total variation over the engine's most probable tokens",
        _preset("dppo", options={"divergence": "top-k-tv"}),
    ),
    "dppo-top-k-kl": (
        "DPPO by the KL divergence over the engine's most probable tokens",
        _preset("dppo", options={"divergence": "top-k-kl"}),
    ),
    "drpo": (
        "a quadratic penalty on probabilities in the place of the clip, delta 12.5 (arXiv:2606.09821)",
        _preset("drpo", **_CENTRED),
    ),
    "spo": ("a quadratic penalty on ratios in the place of the clip (arXiv:2401.16025)", _preset("spo")),
    "up": ("REINFORCE where A > 0, PPO with a dual clip elsewhere (arXiv:2607.06987)", _preset("up")),
    "cispo": ("REINFORCE with the ratio held below 1.2 (arXiv:2506.13585)", _preset("cispo")),
    "dis": ("REINFORCE by the ratio inside (0.7, 6), nothing outside: SAO's loss (arXiv:2607.07508)", _preset("dis")),
    "topr": ("REINFORCE where A > 0, its ratio held below 1 elsewhere (arXiv:2503.14286)", _preset("topr")),
    "aspo": ("the ratio turned over where A > 0 (arXiv:2510.06062)", _preset("aspo")),
    "sapo": ("a smooth gate in the place of the clip (arXiv:2511.20347)", _preset("sapo")),
    "vespo": (
        "REINFORCE by a shaped product of the response's ratios (arXiv:2602.10693)",
        _preset("vespo", "product", aggregation={"name": "token-mean"}),
    ),
    "gmpo": ("the geometric mean of clipped token ratios (arXiv:2507.20673)", _preset("gmpo")),
    "gepo": ("REINFORCE by a weight whose denominator the group shares (arXiv:2508.17850)", _preset("gepo", "product")),
    "bapo": ("one interval for the whole step, moved to balance the two signs (arXiv:2510.18927)", _preset("bapo")),
    "m2po": (
        "one interval for the whole step, from the second moment of its log-ratios (arXiv:2510.01161)",
        _preset("m2po"),
    ),
    # what the ratio cannot see, as a weight
    "tis": (
        "GRPO on pi / anchor times min(anchor / behavior, 2), as verl and slime apply it",
        _corrected("tis", proximal="anchor"),
    ),
    "tis-sequence": (
        "the same with one weight a response, the product of its tokens'",
        _corrected("tis", proximal="anchor", level="product"),
    ),
    "tis-sequence-mean": (
        "the same with one weight a response, the geometric mean of its tokens'",
        _corrected("tis", proximal="anchor", level="sequence"),
    ),
    "icepop": (
        "GRPO on pi / anchor times anchor / behavior inside [0.5, 5], nothing outside (arXiv:2510.18855)",
        _corrected("icepop", proximal="anchor"),
    ),
    "icepop-old": (
        "IcePop as published: on pi / old, times old / behavior inside [0.5, 5] (arXiv:2510.18855)",
        _corrected("icepop", proximal="old"),
    ),
    "grpo-old": ("GRPO on pi / old times min(old / behavior, 2)", _corrected("tis", proximal="old")),
    # masks
    "icepop-mask": (
        "GRPO that drops tokens whose ratio leaves [0.5, 5]",
        _corrected("icepop", form="mask", edge="total"),
    ),
    "kpop": (
        "GRPO that drops tokens by the KL of their probability, both ways, above 0.5",
        _corrected("kpop", edge="total"),
    ),
    "seqclip": ("GSPO that drops responses whose ratio leaves [0.995, 1.005]", _corrected("seqclip", "sequence")),
    "estr": (
        "GRPO that drops tokens by d^2 / entropy; its threshold is to be given (arXiv:2607.22186)",
        _corrected("estr"),
    ),
    "opsm": ("GRPO that drops bad responses which the policy has left (arXiv:2512.02556)", _corrected("opsm")),
    "trm": ("GRPO that drops responses with one token of large KL (arXiv:2512.23075)", _corrected("trm")),
    "m2po-elimination": (
        "GRPO that drops the largest log-ratios until their second moment is small, as AReaL does",
        _corrected("m2po-elimination"),
    ),
    # a proximal policy of its own
    "decoupled": (
        "PPO against the anchor, weighted by anchor / behavior, 100 at most in all (arXiv:2110.00641)",
        _corrected("decoupled", proximal="anchor"),
    ),
    "a3po": (
        "decoupled PPO against a point between behavior and current policy (arXiv:2512.06547)",
        _corrected("decoupled", proximal="a3po"),
    ),
    "ppo-ewma": (
        "decoupled PPO against the running average of the weights (arXiv:2110.00641)",
        _corrected("decoupled", proximal="ewma"),
    ),
    "ppo-ewma-revised": (
        "PPO against that average, reset when few tokens survive, in a band of average / behavior (arXiv:2605.12070)",
        _preset(
            "ppo",
            options={"epsilon_low": 0.2, "epsilon_high": 0.28},
            proximal={"name": "ewma", "reset_below": 0.9},
            corrections=[{"name": "icepop", "form": "mask", "alpha": 0.2, "beta": 5.0}],
        ),
    ),
    # SAT's family, ours (docs/decisions/0018)
    "adaptive-radius": (
        "GRPO whose one radius is SAT's effective radius: SAT's ablation (ours)",
        _sat(rule="adaptive-radius"),
    ),
    "sat-turn": ("SAT-GRPO with a q for each turn of tool use (ours)", _sat(scale={"name": "per-turn"})),
    "sat-staleness": ("SAT-GRPO with a q for each bin of staleness (ours)", _sat(scale={"name": "per-staleness"})),
    "sat-absolute": ("SAT-GRPO with a q that is a constant (ours)", _sat(scale={"name": "absolute", "value": 0.02})),
    "sat-bounded": ("SAT-GRPO with a floor and a ceiling for q (ours)", _sat(scale={"name": "bounded"})),
    "sat-ema": ("SAT-GRPO with the running average of q (ours)", _sat(scale={"name": "ema"})),
    "sat-edge": (
        "SAT whose gate reads pi / behavior while the clip acts on pi / running average (ours)",
        {**_sat(rule="sat-edge"), "proximal": {"name": "ewma"}, "corrections": [{"name": "decoupled"}]},
    ),
    # the trainer's own experts repeated
    "gspo-r2": (
        "GSPO whose later updates of a batch take the experts of its first (arXiv:2507.18071)",
        {**_GRID["gspo"][1], **R2},
    ),
    "sat-gspo-r2": (
        "SAT-GSPO whose later updates of a batch take the experts of its first (arXiv:2507.18071)",
        {**_GRID["sat-gspo"][1], **R2},
    ),
    # step size
    "vcpo": (
        "GRPO whose learning rate falls with the effective sample size (arXiv:2602.17616)",
        _preset("ppo", options=CLIP, step_size={"name": "vcpo"}),
    ),
    "drift-budget": (
        "GRPO whose learning rate falls with the mean |d| (ours)",
        _preset("ppo", options=CLIP, step_size={"name": "drift-budget"}),
    ),
}
"""One for each method beside the study's."""

_OURS: dict[str, tuple[str, Table]] = {
    **_GRID,
    **{f"{name}-r3": (f"{_GRID[name][0]}, experts replayed", {**_GRID[name][1], **R3}) for name in _REPLAYED},
}
_PAPERS: dict[str, tuple[str, Table]] = {
    f"paper/{name}": (f"{line}; settings of the SAT study", {**table, **PAPER}) for name, (line, table) in _OURS.items()
}
_PAPERS["paper/dppo"] = (
    "PPO's clip times DPPO's mask at delta 0.001; settings of the SAT study",
    {**_preset("dppo", options={"form": "clip", "delta_low": 1e-3, "delta_high": 1e-3, **CLIP}), **PAPER},
)
_ALL = {**_OURS, **_PAPERS, **_METHODS}

PRESETS: dict[str, Table] = {name: table for name, (_, table) in _ALL.items()}
SUMMARIES: dict[str, str] = {name: line for name, (line, _) in _ALL.items()}


def preset(name: str) -> Table:
    """A copy of a preset's table.

    >>> preset("sat-gspo")["level"], preset("paper/sat-gspo")["measure"]
    ('sequence', 'micro-batch')
    """
    if name not in PRESETS:
        alike = [known for known in PRESETS if name in known] + get_close_matches(name, PRESETS, cutoff=0.4)
        close = list(dict.fromkeys(alike))[:5] or list(_GRID)
        raise UnknownNameError(
            f"no preset {name!r}; close to it are {', '.join(close)}; `tether rules` lists all {len(PRESETS)}"
        )
    return deepcopy(PRESETS[name])


def summary(name: str) -> str:
    """What a preset is, in a line."""
    return SUMMARIES[name]
