"""Runs that are killed at any point, in every regime, and end as runs that never died."""

import random
import shutil
import signal
from pathlib import Path

import pytest

from tether.config.build import go_on
from tether.config.resume import plan
from tether.errors import ResumeError, RunDirectoryError
from tether.journal import RunView
from tether.pipeline.snapshot import read_snapshot

from .killing import Killer
from .quick import journal

BASE = (
    *("run.steps=6", "run.device=cpu", "run.samples=2", "eval.prompts=0", "checks.prompts=0", "checkpoint.every=1"),
    *("pipeline.prompts_per_step=2", "pipeline.group_size=2", "algorithm.preset=sat-grpo", "trainer.warmup=2"),
    *("engine.yield_every=3", "placement.costs.reward_s=0.07"),
)
STREAMING = ("pipeline.regime=fully-async", "pipeline.lag=1", "pipeline.max_staleness=3")
REGIMES = {
    "sync": ("pipeline.regime=sync", "pipeline.lag=1"),
    "two updates a batch": ("pipeline.lag=4", "pipeline.updates_per_batch=2"),
    "keep": (*STREAMING, "pipeline.in_flight=keep"),
    "recompute": (*STREAMING, "pipeline.in_flight=recompute"),
    "restart": (
        *(*STREAMING, "pipeline.in_flight=restart", "pipeline.group_size=3"),
        *("placement.engines=2", "engine.max_rows=3"),
    ),
    "finish": (*STREAMING, "pipeline.in_flight=finish"),
    "all at once": (
        *(*STREAMING, "pipeline.window=2", "selection.flat_groups=filter", "pipeline.group_size=3"),
        *("placement.engines=2", "engine.max_rows=3"),
    ),
}
DEFAULT = "all at once"
"""That of the default tier, which goes on with rows in flight."""
MORE = {
    "batch-async": ("pipeline.lag=2",),
    "restart on one engine": (*STREAMING, "pipeline.in_flight=restart"),
    "window": (*STREAMING, "pipeline.window=2"),
    "flat groups": (*STREAMING, "selection.flat_groups=filter", "pipeline.group_size=3"),
    "two engines": (*STREAMING, "placement.engines=2", "engine.max_rows=3"),
    "snapshots": (*STREAMING, "old.strategy=snapshots"),
    "snapshots on disk": ("pipeline.lag=2", "old.strategy=snapshots", "old.where=disk"),
    "interruption": (*STREAMING, "old.strategy=interruption"),
    "adapter": ("pipeline.lag=2", "model.lora_rank=4"),
    "adapter in mid-generation": (*STREAMING, "model.lora_rank=4"),
    "evaluator": (*STREAMING, "old.strategy=evaluator"),
    "dropped": (*STREAMING, "selection.drop_queue=2", "pipeline.window=2"),
    "every token a block": (*STREAMING, "engine.yield_every=1", "placement.engines=2"),
    "no cost": (*STREAMING, "placement.costs.generate_token_s=0.0", "placement.costs.publish_s=0.0"),
}


class Whole:
    """Runs that nobody disturbed, and how many points each has at which it could have died."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.killer = Killer()
        self._calls: dict[str, int] = {}

    def run(self, regime: str) -> tuple[Path, int]:
        """Made once."""
        out = self._home / regime.replace(" ", "-")
        if regime not in self._calls:
            assert self.killer.run(out, settings_of(regime), report=self._home / "calls") == 0
            self._calls[regime] = int((self._home / "calls").read_text())
        return out, self._calls[regime]


def settings_of(regime: str) -> tuple[str, ...]:
    return (*BASE, *{**REGIMES, **MORE}[regime])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))


def spans(folder: Path) -> bytes:
    return (folder / "spans.jsonl").read_bytes()


def num_under_way(folder: Path) -> int:
    """Tokens in the engines' caches when the checkpoint was made from which a run would go on."""
    checkpoint = plan(folder, None, (), told=lambda text: None).checkpoint
    if checkpoint is None:
        return 0
    flights = read_snapshot(checkpoint.state).loops.pool.flights
    drafts = [draft["request"] for flight in flights.values() for draft in flight["batch"]["drafts"]]
    return sum(len(request.so_far) for request in drafts if request.so_far is not None)


def kill_and_resume(out: Path, whole: Whole, regime: str, seed: int, *, midway: bool = False) -> int:
    """Die at a random point, now and then once more while resuming, and end as the run that never died; how many
    tokens were under way where it first went on."""
    reference, num_calls = whole.run(regime)
    numbers = random.Random(f"{regime} {seed}")
    low, high = (0.45, 0.65) if midway else (0.0, 1.0)
    last = numbers.randint(1 + int(low * num_calls), int(high * num_calls))
    assert whole.killer.run(out, settings_of(regime), last=last) == -signal.SIGKILL, (regime, seed, last)
    if not (out / "config.json").is_file():  # it died before it began
        with pytest.raises((ResumeError, RunDirectoryError)):
            plan(out, None, (), told=lambda text: None)
        return 0
    tokens = num_under_way(out)
    for _ in range(numbers.choice([0, 0, 1, 2])):
        whole.killer.run(out, resume=True, last=numbers.randint(1, 60))
    go_on(plan(out, None, (), told=lambda text: None))
    assert_same(out, reference)
    return tokens


def assert_same(out: Path, reference: Path) -> None:
    ours, theirs = journal(out), journal(reference)
    for name in theirs:
        assert ours[name] == theirs[name], name
    assert spans(out) == spans(reference)
    assert (out / "model/model.safetensors").read_bytes() == (reference / "model/model.safetensors").read_bytes()
    assert RunView(out).status == "finished"
    assert not list((out / "checkpoints").glob(".*"))
    shutil.rmtree(out)


def test_a_run_killed_at_a_random_point_ends_as_the_run_that_never_died(tmp_path, whole):
    tokens = kill_and_resume(tmp_path / "run", whole, DEFAULT, 0, midway=True)
    assert tokens > 0, "it was to go on in the middle of generations"


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 102))
@pytest.mark.parametrize("regime", [*REGIMES, *MORE])
def test_a_run_killed_at_any_of_many_random_points_ends_as_the_run_that_never_died(tmp_path, whole, regime, seed):
    kill_and_resume(tmp_path / "run", whole, regime, seed)
