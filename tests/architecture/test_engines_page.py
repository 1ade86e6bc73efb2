"""The page on engines says what they declare, and each of it is shown by a test or marked as unverified."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from types import ModuleType

import pytest

from tether.ports import EngineCapabilities

from .tree import ROOT

PAGE = ROOT / "docs" / "engines.md"
CAN = EngineCapabilities(logp="processed", token_versions=True, in_flight=("keep",))
THERE = "tests/architecture/test_engines_page.py::test_the_page_is_what_the_command_makes_now"
SHOWN = {"logp": THERE, "token_versions": "unverified: no such server here", "in_flight/keep": THERE}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("engines_page", ROOT / "docs" / "engines.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_command_makes_now() -> None:
    command = [sys.executable, str(ROOT / "docs" / "engines.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_row_of_a_table_has_the_columns_of_its_head() -> None:
    counts: list[int] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            counts = []
            continue
        counts.append(len(re.findall(r"(?<!\\)\|", line)))
        assert counts[-1] == counts[0], line


def test_an_engine_whose_abilities_are_all_shown_has_no_fault(script: ModuleType) -> None:
    assert list(script.faults_of({"new": CAN}, {"new": SHOWN})) == []


@pytest.mark.parametrize(
    ("evidence", "fault"),
    [
        ({}, "new declares 'logp'; which test shows it?"),
        ({"new": {**SHOWN, "lora": THERE}}, "new no longer declares 'lora'"),
        ({"new": {k: v for k, v in SHOWN.items() if k != "in_flight/keep"}}, "new declares 'in_flight/keep'; which"),
        ({"new": {**SHOWN, "logp": f"{THERE}_and_more"}}, "new 'logp': there is no test"),
        ({"new": {**SHOWN, "logp": "tests/nowhere.py::test_it"}}, "new 'logp': there is no test tests/nowhere.py"),
    ],
)
def test_an_ability_without_evidence_fails_the_check(script: ModuleType, evidence: dict, fault: str) -> None:
    assert any(told.startswith(fault) for told in script.faults_of({"new": CAN}, evidence))


def test_every_field_of_the_capabilities_is_a_row(script: ModuleType) -> None:
    assert set(script.ROWS) == set(EngineCapabilities.__dataclass_fields__)
