"""Which metrics of a run stand together in a figure, and what healthy looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

BLUE: Final = "#3d85c6"
"""What a panel is about."""
ORANGE: Final = "#e08a1e"
"""Its upper end: the worst token, the outer radius."""
GREEN: Final = "#2e9e86"
"""What the run is for: accuracy on prompts that it does not train on."""
VIOLET: Final = "#9a6fc9"
"""What corrections do."""
RED: Final = "#cf5a6b"
"""What SAT alone does."""
GREY: Final = "#8a919c"
"""What to compare with: a bound, a threshold. All six are readable on a light and on a dark page."""
ENDS: Final = ("{}_low", "{}_high")
"""How the ends of an interval are called."""
SEVERAL: Final = (BLUE, ORANGE, GREEN, VIOLET, RED, GREY)
"""Of curves that share a pattern, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a figure."""

    metric: str
    """A name, or a pattern (``throughput/*``)."""
    label: str
    """With ``{}`` for what the ``*`` of the pattern stands for where each match is one, in ``shares`` for that with a
    label of the counts, else for the metric's name without its group."""
    colour: str = BLUE
    """Of one curve; those of ``each`` and ``shares`` take turns."""
    matches: Literal["first", "each", "sum", "shares"] = "first"
    """What is drawn where several metrics fit the pattern: one of them, a curve of each, or their sum; or, of metrics
    that are counts by label, the share of each label."""
    zeros: Literal["shown", "hidden", "shown-if-others"] = "shown"
    """``hidden`` for a number that is 0 where it was not measured; the last leaves out a curve that is 0 all along."""
    event: str = "step"
    band: tuple[str, str] | None = None
    """Metrics of the lower and the upper end of its interval, drawn if both were measured; ``{}`` for the metric's
    name."""
    dash: Literal["solid", "dashed", "dotted"] = "solid"
    """Not ``solid`` for a curve that may lie exactly on another one; it has no dots, so that the other shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One figure with its sentence."""

    title: str
    unit: str
    says: str
    """What it shows and what healthy looks like, in a sentence or two."""
    curves: tuple[Curve, ...]
    scale: Literal["linear", "log"] = "linear"
    """``log`` is kept only where every value drawn is above 0."""
    level: tuple[str, str] | None = None
    """A number of the resolved recipe to compare with, drawn as a dotted line: its label and its dotted place."""
    kind: Literal["curves", "histogram"] = "curves"
    is_noisy: bool = True
    """Whether a long run's curves need a running mean to be read."""
    is_optional: bool = False
    """Left out of the page, and not said to be absent, where a run measured nothing of it: not every recipe has it."""


def _held(fate: str, direction: str, colour: str) -> Curve:
    """Share of tokens of a fate and a direction, over both signs of the advantage."""
    is_outward = direction == "outward"
    return Curve(
        metric=f"fate/{fate}/*/{direction}",
        label=f"{fate} {'outward' if is_outward else 'pulling back'}",
        colour=colour,
        matches="sum",
        zeros="shown" if fate == "clipped" else "shown-if-others",
        dash="dashed" if is_outward else "dotted",
    )


PANELS: Final = (
    Panel(
        title="Reward",
        unit="mean reward",
        says="Mean reward of the rollouts that each step trained on. Healthy: it climbs through the noise and "
        "levels off; a fall that does not recover is a collapse.",
        curves=(Curve(metric="reward/mean", label="reward", colour=BLUE),),
    ),
    Panel(
        title="Parts of the reward",
        unit="mean before its weight",
        says="What each part of the reward gave to the answers that it was asked about. Healthy: the part that decides "
        "climbs; one of form or length that climbs while it falls is what the policy learns instead.",
        curves=(Curve(metric="reward/part/*", label="{}", matches="each"),),
        is_optional=True,
    ),
    Panel(
        title="How answers were judged",
        unit="share of answers",
        says="Share of the answers that met each status of a reward. Healthy: correct grows out of wrong; a large "
        "share of timeout or parse_error is the reward's failing, trained on as if the answers were wrong.",
        curves=(Curve(metric="reward/status/*", label="{}", matches="shares"),),
        is_optional=True,
    ),
    Panel(
        title="Groups all right, all wrong, mixed",
        unit="share of groups",
        says="Groups in a batch whose answers are all right, all wrong, or of both kinds, and those that teach nothing "
        "because their rewards are equal. Healthy: mixed ones, in which there is something to learn; all right says "
        "that prompts are too easy, all wrong that they are too hard.",
        curves=(
            Curve(metric="reward/groups_all_right", label="all right", colour=GREEN),
            Curve(metric="reward/groups_all_wrong", label="all wrong", colour=RED),
            Curve(metric="reward/groups_mixed", label="mixed", colour=BLUE),
            Curve(metric="reward/flat_groups_fraction", label="equal rewards", colour=GREY, dash="dotted"),
        ),
        is_optional=True,
    ),
    Panel(
        title="Held-out accuracy",
        unit="accuracy",
        says="Share of held-out prompts answered correctly, with its interval. Healthy: it follows the reward; "
        "reward that rises alone is being gamed. Of several samples a problem it is avg@k; pass@k is the chance that "
        "one of k is right, maj@k that the most frequent answer is.",
        curves=(
            Curve(metric="eval/accuracy", label="accuracy", colour=GREEN, event="eval", band=ENDS),
            Curve(metric="eval/pass@*", label="{}", colour=BLUE, event="eval", band=ENDS),
            Curve(metric="eval/maj@*", label="{}", colour=ORANGE, event="eval", band=ENDS),
        ),
    ),
    Panel(
        title="Length of held-out answers",
        unit="tokens",
        says="Tokens of the answers to held-out prompts. Healthy: it moves slowly; a 95 % point at the most tokens "
        "allowed means that answers are cut, and a cut answer is wrong.",
        curves=(
            Curve(metric="eval/length_mean", label="mean", colour=BLUE, event="eval"),
            Curve(metric="eval/length_median", label="median", colour=GREY, event="eval", dash="dashed"),
            Curve(metric="eval/length_p95", label="95 % up to", colour=ORANGE, event="eval"),
        ),
        is_optional=True,
    ),
    Panel(
        title="Staleness",
        unit="optimizer updates",
        says="Updates made between a token's weights and its use. Healthy: the maximum never passes the bound; "
        "a drift upwards means that generation falls behind.",
        level=("bound", "derived.staleness_bound"),
        is_noisy=False,
        curves=(
            Curve(metric="staleness/max", label="max", colour=ORANGE),
            Curve(metric="staleness/mean", label="mean", colour=BLUE, dash="dashed"),
        ),
    ),
    Panel(
        title="Staleness of all trained tokens",
        unit="tokens",
        says="How many tokens were trained at each staleness, over the whole run. Healthy: the spread that the "
        "configured lag implies, and nothing beyond it.",
        curves=(Curve(metric="staleness/histogram", label="tokens", colour=BLUE),),
        kind="histogram",
    ),
    Panel(
        title="Mismatch",
        unit="|d|, nats",
        says="Distance between the policy being trained and the one that sampled: |d|, with d = logp - logp_behavior. "
        "Healthy: flat or slowly moving; growth without end is how stale runs die.",
        curves=(
            Curve(metric="mismatch/abs_mean", label="mean |d|", colour=BLUE),
            Curve(metric="mismatch/p99", label="99th percentile", colour=ORANGE),
        ),
        scale="log",
    ),
    Panel(
        title="Mass lost to truncation",
        unit="probability",
        says="What the trainer gives to ids that the engine cuts off, a token: the engine samples among some ids only, "
        "and the trainer computes over all. Each ratio is too small by the mass lost at its token. Healthy: near 0; "
        "algorithm.replay 'support' makes it 0.",
        curves=(
            Curve(metric="mismatch/lost_mass_mean", label="mean", colour=BLUE),
            Curve(metric="mismatch/lost_mass_max", label="max", colour=ORANGE),
        ),
        is_optional=True,
    ),
    Panel(
        title="Mismatch in its two parts",
        unit="|d|, nats",
        says="d = d_policy + d_engine, by the trainer's own log-probs at the weights that sampled each token: what "
        "updates have moved since, and what the engine computes otherwise. Healthy: the engine's part stays where it "
        "began.",
        curves=(
            Curve(metric="mismatch/policy_abs_mean", label="mean |d_policy|", colour=BLUE),
            Curve(metric="mismatch/engine_abs_mean", label="mean |d_engine|", colour=ORANGE),
            Curve(metric="mismatch/engine_cached_abs_mean", label="over an older cache", colour=GREY, dash="dashed"),
        ),
        scale="log",
        is_optional=True,
    ),
    Panel(
        title="Rerouted",
        unit="share of (token, layer) pairs",
        says="After each publication: where the trainer's own routers, at equal weights, would have chosen another set "
        "of experts than the engine did, which a replay of routes undoes. Healthy: small and flat; what grows comes "
        "from number formats and kernels as routers sharpen, not from staleness.",
        curves=(Curve(metric="probe/rerouted_share/*", label="{}", matches="each", event="check"),),
        is_optional=True,
    ),
    Panel(
        title="Self-check",
        unit="|d|, nats",
        says="After each publication: how far the engine's numbers lie from those of the weights it was sent, what "
        "would have stopped the run, and how far they lie from the version before. Healthy: below both.",
        curves=(
            Curve(metric="probe/distance", label="to what was sent", colour=BLUE, event="check"),
            Curve(metric="probe/allowed", label="allowed", colour=GREY, event="check"),
            Curve(metric="probe/abs_d_previous", label="to the version before", colour=ORANGE, event="check"),
        ),
        scale="log",
        is_noisy=False,
    ),
    Panel(
        title="SAT's trust region",
        unit="log-ratio, radius",
        says="q, above which a token's radius contracts (one a bin where the recipe has bins, where a step has tokens "
        "in it), and the PPO radius below and above 1 that gives the same gradient, if it is one. Healthy: all sit "
        "below PPO's own, and the radius tightens when q is small.",
        curves=(
            Curve(metric="sat/q", label="q", colour=GREY),
            Curve(metric="sat/q/*", label="q of {}", matches="each", zeros="hidden"),
            Curve(metric="sat/effective_radius_low", label="below 1", colour=BLUE),
            Curve(metric="sat/effective_radius_high", label="above 1", colour=ORANGE, dash="dashed"),
        ),
        scale="log",
        level=("PPO", "algorithm.rule.epsilon_low"),
        is_optional=True,
    ),
    Panel(
        title="Tokens held back",
        unit="share of tokens",
        says="Tokens with no gradient, in all; those with an advantage by what denied it (clipped: the rule; masked: "
        "a correction), and whether they had moved outward or would pull back. For SAT, what it gates and what only it "
        "cuts. Healthy: a few per cent; near 0 nothing is held, a large share wastes the data.",
        curves=(
            Curve(metric="clip/fraction", label="no gradient", colour=BLUE),
            _held("clipped", "outward", ORANGE),
            _held("clipped", "pull_back", ORANGE),
            _held("masked", "outward", VIOLET),
            _held("masked", "pull_back", VIOLET),
            Curve(metric="sat/gate_fraction", label="gated by SAT", colour=GREY),
            Curve(metric="sat/newly_cut_fraction", label="newly cut by SAT", colour=RED, dash="dotted"),
        ),
    ),
    Panel(
        title="Corrections",
        unit="mean weight, share",
        says="Mean weight that each correction gives to a trainable token, and the share that it gives 0. Healthy: a "
        "weight near 1 and few zeros; a weight that sinks says that the sampler's policy is left behind.",
        curves=(
            Curve(metric="correction/*/mean_weight", label="{} mean weight", matches="each"),
            Curve(metric="correction/*/zero_fraction", label="{} weight 0", matches="each", dash="dashed"),
        ),
        is_optional=True,
    ),
    Panel(
        title="Step size",
        unit="factor",
        says="What the learning rate of each step is multiplied by. Healthy: near 1, lower where tokens are stale; "
        "a lasting fall says that the run learns from little.",
        curves=(Curve(metric="policy/step_size", label="step size"),),
        is_optional=True,
    ),
    Panel(
        title="Entropy",
        unit="nats a token",
        says="How undecided the policy is. Healthy: it sinks slowly as the policy learns; a plunge towards 0 "
        "ends exploration, and a rise means that the policy is coming apart.",
        curves=(Curve(metric="policy/entropy", label="entropy", colour=BLUE),),
    ),
    Panel(
        title="Gradient norm",
        unit="norm before clipping",
        says="Size of each step's gradient. Healthy: one order of magnitude, single spikes that pass; "
        "a lasting rise calls for a lower learning rate or a shorter lag.",
        curves=(Curve(metric="policy/grad_norm", label="gradient norm", colour=BLUE),),
        scale="log",
    ),
    Panel(
        title="Throughput",
        unit="tokens a second",
        says="Tokens of each step by the seconds since the step before. Healthy: a steady pattern; with a lag it is a "
        "comb, since generation falls on a few steps of a block. A decline means that something grows.",
        curves=(Curve(metric="throughput/*tokens*", label="tokens/s", colour=BLUE),),
    ),
)
