"""Which factors go together: accepted, refused before the run with the reason and a way out, or doubtful."""

from __future__ import annotations

import pytest

from tests.golden.tables import Given
from tether.core.advantage import GRPO
from tether.core.aggregation import TokenMean
from tether.core.algorithm import Algorithm
from tether.core.composition import doubts
from tether.core.proximal import Proximal
from tether.core.ratio import Level
from tether.core.rule import Correction, Rule
from tether.corrections.decoupled import Decoupled
from tether.corrections.estr import ESTR
from tether.corrections.icepop import IcePop
from tether.corrections.kpop import KPop
from tether.corrections.opsm import OPSM
from tether.corrections.seqclip import SeqClip
from tether.corrections.tis import TIS
from tether.corrections.trm import TRM
from tether.errors import ConfigError
from tether.proximal.a3po import A3POProximal
from tether.proximal.anchor import AnchorProximal
from tether.proximal.ewma import EWMAProximal
from tether.proximal.old import OldProximal
from tether.proximal.rollout import RolloutProximal
from tether.rules.gepo import GEPO
from tether.rules.gmpo import GMPO
from tether.rules.ppo import PPO
from tether.rules.sat import SAT

MASK = Given((1.0,), is_mask=True)
WEIGHT = Given((1.0,), is_mask=False)

ROLLOUT, ANCHOR, OLD, EWMA, A3PO = (
    RolloutProximal(),
    AnchorProximal(),
    OldProximal(),
    EWMAProximal(),
    A3POProximal(),
)
ICEPOP_MASK = IcePop(form="mask")
BAND = IcePop(form="mask", edge="total")
LITERAL = IcePop(edge="engine", literal=True)
TAU = ESTR(threshold=1.0)
rules = pytest.mark.parametrize("rule", [PPO(), SAT()], ids=["ppo", "sat"])


def compose(proximal: Proximal, *corrections: Correction, rule: Rule | None = None, level: Level = "token"):
    return Algorithm(
        proximal=proximal,
        level=level,
        rule=rule or PPO(),
        corrections=corrections,
        aggregation=TokenMean(),
        advantage=GRPO(),
    )


ACCEPTED = {
    "rollout": (ROLLOUT,),
    "rollout x mask": (ROLLOUT, MASK),
    "rollout x kpop on total": (ROLLOUT, KPop(edge="total")),
    "rollout x kpop on engine": (ROLLOUT, KPop(edge="engine")),
    "rollout x icepop 0/1 on engine": (ROLLOUT, IcePop(form="mask", edge="engine")),
    "rollout x estr": (ROLLOUT, TAU),
    "rollout x seqclip": (ROLLOUT, SeqClip()),
    "rollout x opsm": (ROLLOUT, OPSM()),
    "rollout x trm": (ROLLOUT, TRM()),
    "opsm beside a mask over the same ratio": (ROLLOUT, OPSM(), SeqClip()),
    "masks over different edges": (ROLLOUT, TAU, KPop(edge="engine")),
    "masks at different levels": (ROLLOUT, TAU, SeqClip(), OPSM()),
    "literal icepop": (ROLLOUT, LITERAL),
    "anchor x tis": (ANCHOR, TIS()),
    "anchor x tis x mask": (ANCHOR, TIS(), MASK),
    "anchor x tis x kpop": (ANCHOR, TIS(), KPop()),
    "anchor x icepop": (ANCHOR, IcePop()),
    "anchor x icepop x mask on total": (ANCHOR, IcePop(), TAU),
    "anchor x decoupled": (ANCHOR, Decoupled()),
    "old, on purpose without the engine's mismatch": (OLD,),
    "old x tis": (OLD, TIS()),
    "old x icepop on weight": (OLD, IcePop()),
    "old x icepop on engine": (OLD, IcePop(edge="engine")),
    "old x decoupled x opsm on update": (OLD, Decoupled(), OPSM(edge="update")),
    "ewma, revised: a band and no weight": (EWMA, IcePop(form="mask", alpha=0.2)),
    "ewma x decoupled": (EWMA, Decoupled()),
    "a3po x decoupled": (A3PO, Decoupled()),
    "a3po x tis": (A3PO, TIS()),
}


@rules
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("parts", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_recipes_that_multiply_to_pi_over_behavior_or_on_purpose_to_pi_over_old(parts, level, rule):
    proximal, *corrections = parts
    assert compose(proximal, *corrections, rule=rule, level=level).corrections == tuple(corrections)


REFUSED = {
    "rollout x tis": (
        (ROLLOUT, TIS()),
        "already gives the ratio pi/behavior, so tis would correct it a second time, by a ratio that is always 1; "
        "use proximal = 'anchor' or 'old' with it",
    ),
    "rollout x icepop": ((ROLLOUT, IcePop()), "so icepop would correct it a second time"),
    "rollout x decoupled": ((ROLLOUT, Decoupled()), "so decoupled would correct it a second time"),
    "rollout x kpop on weight": (
        (ROLLOUT, KPop()),
        "proximal 'rollout' is the behavior policy, so kpop would look at a ratio that is always 1 and drop nothing; "
        "let it read the edge 'total' or 'engine', or use proximal = 'anchor' or 'old' with a weight",
    ),
    "rollout x icepop's weight on engine": (
        (ROLLOUT, IcePop(edge="engine")),
        r"weights the gradient by pi old / behavior\^2 instead of pi / behavior; the weights icepop correct the same",
    ),
    "anchor alone": (
        (ANCHOR,),
        r"weights the gradient by pi / anchor instead of pi / behavior; with proximal 'anchor' the ratio cannot see "
        r"how stale the data are: add a correction that reads the edge 'weight' \(such as tis\), or use",
    ),
    "anchor x mask, which is no weight": ((ANCHOR, MASK), "weights the gradient by pi / anchor instead"),
    "a3po alone": ((A3PO,), "weights the gradient by pi / proxy instead of pi / behavior"),
    "anchor x icepop on engine": ((ANCHOR, IcePop(edge="engine")), "instead of pi / behavior"),
    "tis x icepop": (
        (ANCHOR, TIS(), IcePop()),
        r"pi anchor / behavior\^2 instead of pi / behavior; the weights tis, icepop correct the same thing",
    ),
    "decoupled x tis": (
        (OLD, Decoupled(), TIS()),
        "the weights decoupled, tis correct the same thing more than once: keep one",
    ),
    "two weights on one edge": ((ANCHOR, TIS(), WEIGHT), r"pi anchor / behavior\^2 instead of pi / behavior"),
    "one correction twice": (
        (ANCHOR, TIS(), TIS(cap=5.0)),
        "takes each correction once; got tis twice: keep one",
    ),
    "icepop 0/1 x kpop on one edge": (
        (ANCHOR, TIS(), ICEPOP_MASK, KPop()),
        r"icepop and kpop both drop tokens by the same ratio \(weight, level token\); they are alternatives: keep one, "
        "or let one read another edge",
    ),
    "icepop's weight drops tokens, too": ((ANCHOR, IcePop(), KPop()), "icepop and kpop both drop tokens"),
    "kpop x estr on one edge": ((ROLLOUT, KPop(edge="total"), TAU), "kpop and estr both drop tokens"),
    "estr x trm on one edge": ((ROLLOUT, TAU, TRM()), "estr and trm both drop tokens"),
    "two names of one edge": (
        (OLD, TIS(), ICEPOP_MASK, KPop(edge="engine")),
        r"icepop and kpop both drop tokens by the same ratio \(engine, level token\)",
    ),
    "literal icepop beside a ratio that is not complete": (
        (OLD, LITERAL),
        "the literal form of icepop stands beside a ratio that is pi / behavior; here it is pi / old: use proximal = "
        "'rollout' and no other weight, or leave literal out",
    ),
    "literal icepop beside another weight": ((ANCHOR, LITERAL, WEIGHT, TIS()), "the literal form of icepop stands"),
}


@rules
@pytest.mark.parametrize(("parts", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_recipes_that_count_a_mismatch_twice_or_not_at_all_are_refused_with_a_way_out(parts, message, rule):
    proximal, *corrections = parts
    with pytest.raises(ConfigError, match=message):
        compose(proximal, *corrections, rule=rule)


PULL_BACK = "also drops tokens that move back towards the data, whose gradient the rule ppo would keep"
SAME = "bounds the same number that the rule clips"
TWICE = "what the engine does differently is counted twice"
LEVELS = "is a weight at level token beside a ratio at level sequence: their product is pi/behavior at neither"

DOUBTFUL = {
    "none": ("token", (), []),
    "a weight that only truncates": ("token", (TIS(),), []),
    "decoupled": ("token", (Decoupled(),), []),
    "masks drop pull-back": ("token", (ICEPOP_MASK, TAU, SeqClip(), OPSM(), TRM()), [PULL_BACK] * 5),
    "icepop's weight drops pull-back": ("token", (IcePop(),), [PULL_BACK]),
    "literal icepop": ("token", (LITERAL,), [TWICE, PULL_BACK]),
    "gspo x seqclip": ("sequence", (SeqClip(),), [PULL_BACK, SAME]),
    "gspo x seqclip on what the clip reads": ("sequence", (SeqClip(edge="clipped"),), [PULL_BACK, SAME]),
    "gspo x seqclip on weight": ("sequence", (SeqClip(edge="weight"),), [PULL_BACK]),
    "gspo x opsm is orthogonal": ("sequence", (OPSM(),), [PULL_BACK]),
    "gspo x a token mask": ("sequence", (TAU,), [PULL_BACK]),
    "gspo x tis of the recipe's level": ("sequence", (TIS(),), []),
    "gspo x a token weight": ("sequence", (TIS(level="token"),), [LEVELS]),
    "gspo x decoupled by token": ("sequence", (Decoupled(),), [LEVELS]),
    "gspo x decoupled by response": ("sequence", (Decoupled(level="sequence"),), []),
    "gspo x icepop's weight": ("sequence", (IcePop(),), [PULL_BACK, LEVELS]),
}


@pytest.mark.parametrize(("level", "corrections", "found"), DOUBTFUL.values(), ids=DOUBTFUL.keys())
def test_what_is_allowed_and_doubtful_is_told_in_a_sentence_each(level, corrections, found):
    told = doubts(level, PPO(), corrections)
    assert len(told) == len(found)
    for sentence, part in zip(told, found, strict=True):
        assert part in sentence


def test_a_rule_that_cuts_pull_back_itself_makes_a_mask_that_does_no_worse():
    assert doubts("token", PPO(dual_clip=3.0), (TAU,)) == []


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_truncates_nothing_is_refused(cap):
    with pytest.raises(ValueError, match=r"cap of tis must lie in \(0, 1e6\] \(2 is usual\); got"):
        TIS(cap=cap)


@pytest.mark.parametrize(("proximal", "correction"), [(RolloutProximal(), MASK), (AnchorProximal(), TIS())])
def test_a_token_weight_or_mask_beside_a_rule_that_averages_tokens_is_refused(proximal, correction):
    with pytest.raises(ConfigError, match=r"rule 'gmpo' averages the ratios of a response, so what .* would leak back"):
        compose(proximal, correction, rule=GMPO())
    assert compose(RolloutProximal(), rule=GMPO()).corrections == ()


def gepo(**choices) -> Algorithm:
    kept = {"proximal": RolloutProximal(), "aggregation": TokenMean(), "advantage": GRPO(), **choices}
    return Algorithm(rule=GEPO(), level="product", **kept)


def test_an_expectation_of_groups_cannot_be_the_last_updates():
    with pytest.raises(ConfigError, match=r"'lagged' may see some of them, .*; use measure = 'step' with rule 'gepo'"):
        gepo(measure="lagged")
    assert gepo(measure="step").measure == "step"


def test_a_weight_beside_a_rule_that_reads_to_the_behavior_itself_is_refused():
    with pytest.raises(ConfigError, match=r"weights the gradient by pi anchor / behavior\^2"):
        gepo(proximal=AnchorProximal(), corrections=(TIS(),))
