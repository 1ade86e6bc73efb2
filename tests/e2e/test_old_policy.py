"""Old log-probs in a live run: what the engine computed is what the trainer computes at each token's own weights."""

from __future__ import annotations

import pytest

from tether.config.build import train
from tether.config.recipe import load
from tether.journal.reader import RunView

from .test_presets import SMALL

FLOOR = 2e-4
"""Nats between engine and trainer at equal weights, both in float32."""
FULLY = [
    "pipeline.regime=fully-async",
    "pipeline.lag=1",
    "pipeline.max_staleness=3",
    "run.steps=6",
    "trainer.lr=3e-3",
    "engine.dtype=float32",
    "placement.costs.generate_token_s=0.1",
    "engine.yield_every=2",
]


def steps(tmp_path, *settings: str) -> list[dict[str, object]]:
    folder = train(load("quickstart", [*SMALL, *settings]), tmp_path / "run")
    events = [event for event in RunView(folder).events if event.event == "step"]
    return [{name: metric.value for name, metric in event.metrics.items()} for event in events]


@pytest.mark.parametrize("policy", ["recompute", "keep"])
def test_rollouts_that_span_versions_are_the_engines_at_each_tokens_own(policy, tmp_path):
    """Of a cache that is kept the tokens over older entries are not, and are told apart."""
    told = steps(
        tmp_path, *FULLY, "algorithm.preset=grpo-old", "old.strategy=snapshots", f"pipeline.in_flight={policy}"
    )
    assert max(step["rollout/spanning_fraction"] for step in told) > 0.3
    assert max(step["mismatch/policy_max"] for step in told) > 30 * FLOOR
    assert all(step["mismatch/engine_max"] < FLOOR for step in told if "mismatch/engine_abs_mean" in step)
    cached = [step["mismatch/engine_cached_abs_mean"] for step in told if "mismatch/engine_cached_abs_mean" in step]
    assert bool(cached) == (policy == "keep")
    assert all(step["staleness/cached_fraction"] > 0 for step in told if "mismatch/engine_cached_abs_mean" in step)


def test_several_updates_of_a_batch_train(tmp_path):
    told = steps(
        tmp_path, "algorithm.preset=decoupled", "pipeline.updates_per_batch=2", "pipeline.lag=4", "trainer.lr=3e-3"
    )
    assert [step["staleness/max"] for step in told] == [1.0, 3.0, 5.0]
    for step in told:
        shares = step["reuse/clip_fraction_by_update"]
        assert list(shares) == ["0", "1"]
        assert shares["0"] == 0.0
        assert step["reuse/moved_max"] > 0
