"""Every question in its order. Torch is imported when the versions are told, and not before."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Final

from tether.machine.finding import Finding, reason_of
from tether.machine.surroundings import Surroundings

QUESTIONS: Final = {
    "versions": "versions",
    "devices": "devices",
    "threads": "threads",
    "engines": "engines",
    "placements": "placements",
    "models": "models",
    "disk": "disk",
    "terminal": "terminal",
    "self-test": "trial",
}
"""Each section and the module of this room that answers it."""
NEED_TORCH: Final = ("engines", "placements", "models", "self-test")
SELF_TEST: Final = "self-test"


def examine(here: Surroundings, *, self_test: bool = True) -> Iterator[Finding]:
    """Findings as they come; a question that cannot be answered is a finding itself."""
    for section, module in QUESTIONS.items():
        if section == SELF_TEST and not self_test:
            continue
        if section in NEED_TORCH and here.torch() is None:
            way_out = "mend torch first, see versions"
            yield Finding(section=section, name="all", status="warn", value="not looked at", way_out=way_out)
            continue
        try:
            yield from importlib.import_module(f"tether.machine.{module}").look(here)
        except Exception as error:  # odd machines raise odd things, broken packages too
            value = f"cannot be answered: {reason_of(error)}"
            way_out = "mend what fails above; with nothing above, report it with the output of tether doctor --json"
            yield Finding(section=section, name="all", status="fail", value=value, way_out=way_out)
