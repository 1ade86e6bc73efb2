"""Which statistics an update is given, by the scope of its recipe, and what is remembered for the next."""

from __future__ import annotations

import math

import pytest
import torch

from tether.core.memory import Memory, Smoothed
from tether.core.ratio import Ratio
from tether.core.statistics import AbsoluteQuantile, Statistics

from .small import Bench, algorithm_of, loaded_of, step_of

Q = AbsoluteQuantile(0.9)
D = Ratio("clipped", "token")


@pytest.fixture(scope="module")
def dense() -> Bench:
    return Bench(loaded_of("tied"))


def steps(bench: Bench, budgets=(4096, 4096, 4096), **changes) -> list[dict[str, float]]:
    """Metrics of a few updates on the same groups."""
    trainer = bench.trainer(algorithm_of("sat-grpo", **changes), lr=1e-2, warmup=0)
    return [
        {name: metric.value for name, metric in trainer.step(step_of(bench.groups, budget)).metrics.items()}
        for budget in budgets
    ]


def test_a_lagged_scope_uses_the_quantile_of_the_update_before_and_none_at_first(dense):
    now, lagged = steps(dense), steps(dense, measure="lagged")
    assert lagged[0]["sat/q"] == 0.0
    assert lagged[0]["sat/gate_fraction"] == 0.0
    assert lagged[1]["sat/q"] == now[0]["sat/q"] > 0
    assert lagged[1]["sat/gate_fraction"] > 0


def test_a_lagged_scope_does_not_depend_on_how_the_step_was_packed(dense):
    whole, split = steps(dense, measure="lagged"), steps(dense, (40, 40, 40), measure="lagged")
    for a, b in zip(whole, split, strict=True):
        assert a["sat/q"] == pytest.approx(b["sat/q"], rel=1e-4)
        assert a["policy/grad_norm"] == pytest.approx(b["policy/grad_norm"], rel=1e-3)


def test_the_rank_scope_is_the_step_scope_on_one_rank(dense):
    assert steps(dense, (40,), measure="rank")[0]["sat/q"] == steps(dense, (40,))[0]["sat/q"]


def test_a_lagged_scope_needs_no_forward_pass_of_its_own(dense, monkeypatch):
    calls = []
    trainer = dense.trainer(algorithm_of("sat-grpo", measure="lagged"))
    monkeypatch.setattr(trainer, "_preview", lambda *_: calls.append(1))
    trainer.step(step_of(dense.groups, 40))
    assert not calls


def test_what_is_remembered_is_saved_with_the_optimizer_and_goes_on(dense):
    algorithm = algorithm_of("sat-grpo", measure="lagged")
    first = dense.trainer(algorithm, lr=1e-2, warmup=0)
    first.step(step_of(dense.groups))
    saved = {**first.state(), "parameters": {n: p.clone() for n, p in first.state()["parameters"].items()}}
    wanted = first.step(step_of(dense.groups)).metrics
    second = dense.trainer(algorithm, lr=1e-2, warmup=0)
    second.restore(saved)
    again = second.step(step_of(dense.groups)).metrics
    assert again["sat/q"].value == wanted["sat/q"].value > 0
    assert again["policy/loss"].value == wanted["policy/loss"].value


def measured(value: float, statistic=Q) -> dict[Ratio, Statistics]:
    return {D: Statistics({statistic: torch.tensor(value)})}


def test_a_running_average_starts_where_it_is_and_then_moves_by_its_decay():
    memory, average = Memory(), Smoothed(Q, decay=0.75)
    values = []
    for value in (0.4, 0.8, 0.8):
        known = memory.averaged(measured(value, average))
        values.append(float(known[D][average]))
        memory.keep(known)
    assert values == pytest.approx([0.4, 0.5, 0.575])


def test_what_was_averaged_and_not_kept_is_forgotten():
    memory, average = Memory(), Smoothed(Q, decay=0.5)
    memory.keep(memory.averaged(measured(0.2, average)))
    first = memory.averaged(measured(1.0, average))[D][average]
    again = memory.averaged(measured(1.0, average))[D][average]
    assert float(first) == float(again) == pytest.approx(0.6)


def test_statistics_of_another_ratio_are_not_taken_for_these():
    memory = Memory()
    memory.keep(measured(0.3))
    other = Ratio("total", "token")
    assert float(memory.lagged({other: Statistics({Q: torch.tensor(0.0)})})[other][Q]) == 0.0
    assert float(memory.lagged(measured(0.0))[D][Q]) == pytest.approx(0.3)


@pytest.mark.parametrize("decay", [-0.1, 1.0, math.nan])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ValueError, match=r"decay of a running average must lie in \[0, 1\)"):
        Smoothed(Q, decay=decay)
