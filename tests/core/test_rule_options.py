"""Options of rules beyond their range are refused where they are set, with the way out."""

from __future__ import annotations

import math

import pytest

from tether.registry import RULES

REFUSED = [
    ("aspo", {"epsilon_low": 1.5}, r"epsilon_low of aspo must lie in \[0, 1\]; got 1.5"),
    ("aspo", {"cap": 1.0}, r"cap of aspo must lie in \(1, 1e\+09\] \(3 is usual\); got 1.0"),
    ("aspo", {"cap": math.inf}, r"cap of aspo must lie in \(1, 1e\+09\]"),
    ("sapo", {"tau_positive": 0.0}, r"tau_positive of sapo must lie in \[1e-07, 1000\] \(about 1 is usual\); got 0.0"),
    ("sapo", {"tau_negative": math.nan}, r"tau_negative of sapo must lie in .*; got nan"),
    ("vespo", {"k_negative": -1.0}, r"k_negative of vespo must lie in \[0, 100\] \(2 or 3 is usual\); got -1.0"),
    ("vespo", {"rate_positive": math.nan}, r"rate_positive of vespo must lie in .*; got nan"),
    ("gmpo", {"log_clip": 0.0}, r"log_clip of gmpo must lie in \(0, 20\] \(0.4 is usual\); got 0.0"),
    ("bapo", {"low": (0.8, 0.6)}, r"low of bapo must rise within \[0, 1\]"),
    ("bapo", {"high": (0.9, 2.0)}, r"high of bapo must rise within \[1, 1e\+09\]"),
    ("bapo", {"high": (1.2, 1e6)}, r"step of bapo must .* lead through at most 1000 bounds; got 0.05"),
    ("bapo", {"step": 0.0}, r"step of bapo must lie in \(0, 1\]"),
    ("bapo", {"target": 0.0}, r"target of bapo must lie in \(0, 1e\+09\] \(1 is usual\); got 0.0"),
    ("bapo", {"dual_clip": 0.5}, r"dual_clip of bapo must be greater than 1"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED, ids=[f"{name} {o}" for name, o, _ in REFUSED])
def test_an_option_beyond_its_range_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        RULES.build(name, **options)
