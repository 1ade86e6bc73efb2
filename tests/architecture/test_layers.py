"""Who may import whom: the contracts of ``.importlinter``, that they bite, and what a bare import really loads."""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .tree import ROOT, SRC, plugin_files

LINT = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache", "--no-logo"]
PLUGIN_ROOMS = ("rules", "corrections", "proximal", "replay", "rewards", "tasks", "engines")


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the ``tether`` that lies in a folder against the repository's contracts."""
    return subprocess.run(
        [*LINT, str(ROOT / ".importlinter")],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a copy of the package, to plant faults in."""
    shutil.copytree(SRC, tmp_path / "tether", ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
    return tmp_path


def test_every_contract_is_kept() -> None:
    run = lint(SRC.parent)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("planted", "code", "contract"),
    [
        ("core/planted.py", "from tether import pipeline", "Imports point down only"),
        ("attic/__init__.py", "", "Imports point down only"),
        ("report/planted.py", "import torch", "without torch"),
        ("journal/planted.py", "def late():\n    import torch", "without torch"),
        ("journal/planted.py", "import rich", "standard library and numpy"),
        ("core/planted.py", "import transformers", "pure torch"),
        ("rules/planted.py", "from tether.rules import ppo", "Rules do not import each other"),
    ],
)
def test_a_planted_fault_breaks_its_contract(copy: Path, planted: str, code: str, contract: str) -> None:
    file = copy / "tether" / planted
    file.parent.mkdir(exist_ok=True)
    file.write_text(code + "\n")
    run = lint(copy)
    assert run.returncode != 0, run.stdout + run.stderr
    assert any(contract in line and "BROKEN" in line for line in run.stdout.splitlines()), run.stdout + run.stderr


@pytest.mark.parametrize("room", PLUGIN_ROOMS)
def test_every_plug_in_room_has_a_contract_of_independence(room: str) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    section = contracts[f"importlinter:contract:{room}"]
    assert section["type"] == "independence"
    assert section["modules"].split() == [f"tether.{room}.*"]


@pytest.mark.parametrize("room", PLUGIN_ROOMS)
def test_what_plug_ins_of_a_room_may_share_is_no_plug_in(room: str) -> None:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    ignored = contracts[f"importlinter:contract:{room}"].get("ignore_imports", "").split()
    shared = {name.rpartition(".")[2] for name in ignored if "*" not in name and name != "->"}
    assert not shared & {path.stem for path in plugin_files(room)}


@pytest.mark.parametrize("room", ["journal", "ports", "records", "registry", "report"])
def test_a_room_that_must_not_need_torch_does_not_load_it(room: str) -> None:
    code = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module('tether.{room}')\n"
        "for module in pkgutil.iter_modules(getattr(package, '__path__', ())):\n"
        "    importlib.import_module(f'{package.__name__}.{module.name}')\n"
        "print(*sorted({'torch', 'transformers'} & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
