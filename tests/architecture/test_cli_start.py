"""The command line starts light: help must not wait for torch. How many seconds it takes: ``benchmarks/start.py``."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "tokenizers", "bokeh")

PRINT_WHAT_IS_LOADED = f"print('LOADED', *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"


def heavy_modules_after(code: str) -> list[str]:
    """Which heavy libraries a fresh interpreter has loaded once it has run this code."""
    program = f"import atexit, sys\natexit.register(lambda: {PRINT_WHAT_IS_LOADED})\n{code}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stderr.splitlines() if line.startswith("LOADED"))
    return line.split()[1:]


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["report", "--help"]], ids=" ".join)
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    code = f"sys.argv = ['tether', *{arguments!r}]\nfrom tether.cli.app import main\nmain()"
    assert heavy_modules_after(code) == []


def test_import_tether_loads_no_heavy_library() -> None:
    assert heavy_modules_after("import tether") == []
