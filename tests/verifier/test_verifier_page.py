"""The tables of ``docs/verifier.md`` are what the code does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from tether.verifier.policies import Policies
from tether.verifier.robust import judge_robust

from .a15 import PAIRS, Pair

PAGE = (Path(__file__).parents[2] / "docs" / "verifier.md").read_text(encoding="utf-8")


def row(pair: Pair) -> str:
    verdict = judge_robust(pair.prediction, pair.gold)
    option = f"`{pair.policy}`, other way with `{pair.other}`" if pair.policy else ""
    cells = (f"`{text}`".replace("|", "\\|") for text in (pair.gold, pair.prediction))
    stage = f"`{verdict.stage}`" if verdict.stage else ""
    return f"| {pair.id} | {' | '.join(cells)} | {verdict.status} | {stage} | {option} |"


def test_the_page_has_each_pair_of_the_log_with_the_verdict_that_it_gets() -> None:
    missing = [row(pair) for pair in PAIRS if row(pair) not in PAGE]
    assert not missing, "write in docs/verifier.md:\n" + "\n".join(map(row, PAIRS))


def test_the_page_has_each_policy_with_its_default() -> None:
    defaults = Policies()
    missing = [
        f.name for f in dataclasses.fields(Policies) if f"| `{f.name}` | `{getattr(defaults, f.name)}` |" not in PAGE
    ]
    assert not missing
