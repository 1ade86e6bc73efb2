"""Options of weights and masks are refused where they would cut nothing, everything, or could not be meant."""

from __future__ import annotations

import math

import pytest

from tether.registry import CORRECTIONS


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tis", {"cap": 0.0}, r"cap of tis must lie in \(0, 1e6\] \(2 is usual\); got 0.0"),
        ("tis", {"cap": -1.0}, r"cap of tis must"),
        ("tis", {"cap": math.inf}, r"cap of tis must"),
        ("tis", {"cap": math.nan}, r"cap of tis must"),
        ("icepop", {"alpha": 1.0}, r"alpha of icepop must lie in \[0, 1\) \(0.5 is usual\); got 1.0"),
        ("icepop", {"alpha": -0.1}, r"alpha of icepop must"),
        ("icepop", {"beta": 1.0}, r"beta of icepop must lie in \(1, 1e\+09\] \(5 is usual\); got 1.0"),
        ("icepop", {"beta": math.inf}, r"beta of icepop must"),
        ("icepop", {"edge": "total"}, r"edge of icepop must not be 'total' where form is 'weight'.*set form = 'mask'"),
        ("icepop", {"literal": True}, r"literal of icepop must go with form = 'weight' and edge = 'engine'"),
        ("icepop", {"literal": True, "edge": "engine", "form": "mask"}, r"literal of icepop must go"),
        ("kpop", {"phi": 0.0}, r"phi of kpop must lie in \(0, 1e\+09\] \(0.5 is usual\); got 0.0"),
        ("kpop", {"phi": math.nan}, r"phi of kpop must"),
        ("seqclip", {"alpha": 1.0}, r"alpha of seqclip must lie in \[0, 1\) \(0.995 is usual\); got 1.0"),
        ("seqclip", {"beta": 1.0}, r"beta of seqclip must lie in \(1, 1e\+09\] \(1.005 is usual\); got 1.0"),
        ("estr", {}, r"threshold of estr must be given, since the paper's tau is unpublished.*`tether probe MODEL`"),
        ("estr", {"threshold": 0.0}, r"threshold of estr must lie in \(0, 1e\+09\] .*`tether probe MODEL`.*got 0.0"),
        ("estr", {"threshold": math.inf}, r"threshold of estr must lie"),
        (
            "estr",
            {"threshold": 1.0, "epsilon": 0.0},
            r"epsilon of estr must lie in \(0, 1\] \(0.01 is usual\); got 0.0",
        ),
        ("opsm", {"delta": -1e-4}, r"delta of opsm must lie in \[0, 1e\+09\] \(0.0001 is usual\); got -0.0001"),
        ("opsm", {"delta": math.nan}, r"delta of opsm must"),
        ("trm", {"delta": 0.0}, r"delta of trm must lie in \(0, 1e\+09\] \(0.05 is usual\); got 0.0"),
        ("decoupled", {"cap": 0.0}, r"cap of decoupled must lie in \(0, 1e\+18\] \(100 is usual\); got 0.0"),
        ("decoupled", {"cap": math.inf}, r"cap of decoupled must"),
        ("decoupled", {"w_max": 0.0}, r"w_max of decoupled must lie in \(0, 1e\+18\] \(5 is usual\); got 0.0"),
    ],
)
def test_an_option_out_of_range_is_refused_with_its_rule_and_a_usual_value(name, options, message):
    with pytest.raises(ValueError, match=message):
        CORRECTIONS.build(name, **options)


@pytest.mark.parametrize(
    ("name", "edge", "inputs"),
    [
        ("icepop", "engine", ("logp_old",)),
        ("icepop", "weight", ()),
        ("kpop", "engine", ("logp_old",)),
        ("kpop", "total", ()),
        ("opsm", "update", ("logp_old",)),
        ("opsm", "clipped", ()),
    ],
)
def test_an_edge_that_reads_the_old_policy_asks_for_its_log_probabilities(name, edge, inputs):
    assert CORRECTIONS.build(name, edge=edge).traits.inputs == inputs
