"""Runs on a cluster that somebody else has started."""

import subprocess
import sys

import pytest

pytest.importorskip("ray")

from tests.e2e.quick import assert_books_balance
from tether.journal import RunView

from .test_ray_pool import FULLY, warnings
from .test_ray_run import assert_nobody_is_left, processes


@pytest.mark.long
def test_a_node_that_dies_with_an_engine_costs_neither_the_run_nor_a_rollout(tmp_path):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "tests.placement.cluster_run", str(folder), *FULLY, "run.steps=8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert "killed the node of engine-" in done.stdout
    run = RunView(folder)
    assert run.status == "finished"
    assert_books_balance(run, groups=16, size=4, admitted_only=True)
    assert run.balance()["trained"] == 64
    anew = [text for text in warnings(run) if "anew" in text]
    assert len({text.partition(" ")[0] for text in anew}) == 1  # twice if Ray had not yet noticed, and took that node
    assert anew[0].startswith("engine-")
    assert len([facts for facts in processes(folder) if facts["role"].startswith("engine")]) == 3
    assert_nobody_is_left(folder)
