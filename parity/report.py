"""Write docs/parity.md: ``python -m parity.report``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from parity.case import TOLERANCE, Case
from parity.cases import CASES, FAMILIES
from parity.methods.advantage import CREDITS
from parity.sides import Tether
from parity.verl_side import SUPPORTED_ROLLOUT_RS_OPTIONS, Verl, core_algos
from tether.registry import CORRECTIONS, RULES

PAGE = Path(__file__).parent.parent / "docs" / "parity.md"
NAMES = {"verl": "verl", "trl": "TRL"}
INTRODUCTION = f"""# The same numbers as verl and TRL?

The same arrays through tether's losses and through those of verl {version("verl")} and TRL {version("trl")}, as the
package index has them: random batches of ragged responses, with tool output among the tokens, advantages of both signs,
ratios near 1 and far from it. verl's losses are called as its worker calls them; of TRL, the trainer's own method runs,
with the log-probabilities handed to it. `make test-parity` compares, `make parity` writes this page.

Compared are the value of the loss and its gradient in every token's log-probability, in float32. The difference of
values is relative to the value or the sum of the gradient's absolute entries, whichever is larger; that of gradients to
the largest entry. The largest of all batches is shown, value first, and 0 below {TOLERANCE:g}. *Same*: both are.
*Differs*: for the reason given and for no other: with that reason modelled, the numbers are the same again, which is
tested too.

Where settings do not say otherwise, tether's are `proximal = rollout`, `level = token`, `aggregation = token-mean`, and
verl and TRL are given the log-probabilities of the rollout as the old ones.
"""
ELSEWHERE = {"verl's KL penalties": {"abs", "k1+", "k3+"}, "TRL's token selection": {"top_entropy_quantile"}}
"""What the others have and tether has not, where they keep no list to ask."""


def page() -> str:
    """The whole text."""
    sections = [INTRODUCTION, *(_section(title, _losses(cases)) for title, cases in FAMILIES.items())]
    return "\n".join([*sections, _section("Advantages", _credits()), _left_out()])


def _section(title: str, rows: Iterator[tuple[str, ...]]) -> str:
    head = ("method", "library", "its settings", "tether's settings", "difference", "verdict")
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in (head, tuple("---" for _ in head), *rows))
    return f"## {title}\n\n{table}\n"


def _losses(cases: tuple[Case, ...]) -> Iterator[tuple[str, ...]]:
    for case in cases:
        settings = (f"`{case.theirs.settings}`", f"`{case.ours.settings}`")
        gap = " / ".join(map(_number, case.gaps[0]))
        yield case.method, NAMES[case.peer], *settings, gap, _verdict(*_why(case))


def _why(case: Case) -> tuple[str, str]:
    return ("", "") if case.difference is None else (case.difference.cause, case.difference.remedy)


def _credits() -> Iterator[tuple[str, ...]]:
    for credit in CREDITS:
        settings = (f"`{credit.settings}`", f"`{repr(credit.ours).rpartition('.')[2]}`")
        yield credit.method, NAMES[credit.peer], *settings, _number(credit.gaps[0]), _verdict(credit.cause)


def _left_out() -> str:
    """What has no counterpart, or none that was compared."""
    tables = [case.ours.table for case in CASES if isinstance(case.ours, Tether)]
    corrections = [correction for table in tables for correction in table.get("corrections", ())]
    verl = [case.theirs for case in CASES if isinstance(case.theirs, Verl)]
    rejections = {(side.rollout_correction or {}).get("rollout_rs") for side in verl}
    left = {
        "tether's rules": set(RULES.names()) - {table["rule"]["name"] for table in tables},
        "tether's corrections": set(CORRECTIONS.names()) - {correction["name"] for correction in corrections},
        "verl's losses": set(core_algos.POLICY_LOSS_REGISTRY) - {side.name for side in verl},
        "verl's rejections": SUPPORTED_ROLLOUT_RS_OPTIONS - rejections,
        **ELSEWHERE,
    }
    listed = [f"- {what}: {', '.join(f'`{name}`' for name in sorted(names)) or 'none'}" for what, names in left.items()]
    return "\n".join(["## Not compared", "", "The others have no such method, or tether has none.", "", *listed, ""])


def _verdict(cause: str, remedy: str = "") -> str:
    same_with = f" The same numbers in tether: `{remedy}`." if remedy else ""
    return f"**differs**: {cause}{same_with}" if cause else "same"


def _number(gap: float) -> str:
    """Two digits, and none below the tolerance: those depend on the machine."""
    return f"{gap:.2g}" if gap >= TOLERANCE else "0"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
