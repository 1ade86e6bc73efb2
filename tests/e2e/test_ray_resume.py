"""Runs on Ray that are stopped go on with what their engines had sampled."""

import shutil
import signal
from pathlib import Path

import pytest

pytest.importorskip("ray")

from tether.config.build import go_on, train
from tether.config.recipe import load
from tether.config.resume import plan
from tether.journal import RunView
from tether.pipeline.snapshot import read_snapshot

from .quick import SMALL, assert_books_balance

pytestmark = pytest.mark.long
RAY = ("placement.kind=ray", "placement.object_store_bytes=100_000_000", "eval.prompts=0", "checks.prompts=0")
SETTINGS = (
    *(*SMALL, *RAY, "placement.engines=2", "pipeline.regime=fully-async", "pipeline.lag=1", "pipeline.max_staleness=3"),
    *("engine.yield_every=1", "engine.max_rows=4", "engine.max_tokens=64", "checkpoint.every=3"),
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Path:
    """Asked to stop during step 3, of which a checkpoint is due, too."""
    out = tmp_path_factory.mktemp("stopped") / "run"

    def observe(event) -> None:
        if event.event == "step" and event.step == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(load(settings=SETTINGS), out, (observe,))
    return out


@pytest.mark.parametrize("how", ["keep", "restart"])
def test_rollouts_that_were_under_way_in_other_processes_go_on_or_begin_anew(stopped, tmp_path, how):
    out = Path(shutil.copytree(stopped, tmp_path / "run"))
    planned = plan(out, None, (f"checkpoint.partials={how}",), told=pytest.fail)
    assert planned.checkpoint.step == 3
    partials = read_snapshot(planned.checkpoint.state).partials
    assert sum(map(len, partials.values())) > 0
    go_on(planned)
    run = RunView(out)
    assert run.status == "finished"
    assert_books_balance(run, groups=12, size=4)
    assert run.balance() == {"trained": 48}
    assert max(event.metrics["staleness/max"].value for event in run.steps) <= run.config["derived"]["staleness_bound"]
    again = {line.id: line for line in run.ledger if line.id in partials and len(partials[line.id])}
    assert again
    if how == "keep":
        assert {line.num_restarts for line in again.values()} == {0}
        assert all(line.version_first <= partials[id].version[0] for id, line in again.items())
        assert all(line.num_completion_tokens >= len(partials[id]) for id, line in again.items())
    else:
        assert {line.num_restarts for id, line in again.items() if partials[id].finish == "interrupted"} == {1}
