"""The figure of a curriculum: how hard the problems are for the policy, as the run measured it."""

from __future__ import annotations

from typing import Final

from tether.report.panels import BLUE, GREY, ORANGE, Curve, Panel

CURRICULUM_PANELS: Final = (
    Panel(
        title="Pass rates",
        unit="problems",
        says="How many of the measured problems have which pass rate; old weights count less. Healthy: problems move "
        "from 0 to 1 through the middle, which teaches most.",
        curves=(Curve(metric="curriculum/pass_rate/*", label="{}", matches="each"),),
        is_noisy=False,
        is_optional=True,
    ),
    Panel(
        title="Curriculum",
        unit="problems",
        says="Problems that rest, for being always or never right, and those skipped in each step. Healthy: what rests "
        "as hard shrinks as the policy learns; where nearly all rests, the data are used up.",
        curves=(
            Curve(metric="curriculum/retired_easy", label="rest as easy", colour=BLUE),
            Curve(metric="curriculum/retired_hard", label="rest as hard", colour=ORANGE),
            Curve(metric="curriculum/skipped_*", label="skipped", colour=GREY, matches="sum"),
        ),
        is_noisy=False,
        is_optional=True,
    ),
)
