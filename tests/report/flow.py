"""A made-up fully asynchronous run: two engines, weights that change while they sample, a queue, a trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.journal.books import rollout_of
from tests.report.conftest import CONFIG, eval_of, metrics_of, sample_of
from tether.journal import Ledger, RunWriter
from tether.pipeline.timeline import Timeline
from tether.records import Completion, Event, Metric, Metrics, Rollout

SIZE = 4
STEP_S = 2.0
FLOW_CONFIG = CONFIG | {
    "pipeline": CONFIG["pipeline"] | {"regime": "fully-async", "lag": 1, "group_size": SIZE, "max_staleness": 3},
    "placement": {"kind": "inline"},
}


def sampled(id: str, step: int, rng: np.random.Generator, start_s: float, speed_s: float = 0.1) -> Rollout:
    """A rollout under way while versions change every ``STEP_S`` seconds."""
    length = int(rng.integers(8, 60))
    made = rollout_of(id, length)
    version = np.array([int((start_s + speed_s * n) // STEP_S) for n in range(length)], np.int32)
    completion: Completion = replace(made.completion, version=version)
    end_s = start_s + speed_s * length
    return replace(made, completion=completion, started_s=start_s, sampled_s=end_s, finished_s=end_s + 0.3)


def waits_of(step: int, rng: np.random.Generator) -> Metrics:
    waits = {"data": 0.7, "publication": 0.1, "settle": 0.0, "slot": 0.9}
    waits |= {"engine_idle/engine-0": 0.3, "engine_idle/engine-1": 0.5}
    gauges = {"queue_groups": 6, "in_flight_rollouts": 28, "slots_free": 1, "versions_in_flight": 3, "publish_debt": 1}
    parts = {"staleness/in_flight_mean": 1.4, "staleness/in_queue_mean": 0.8, "rollout/versions_mean": 2.1}
    return (
        {f"wait/{name}_s": Metric(value * float(rng.uniform(0.6, 1.4)), "sum") for name, value in waits.items()}
        | {f"pipeline/{name}": Metric(float(round(n * float(rng.uniform(0.7, 1.3))))) for name, n in gauges.items()}
        | {name: Metric(value * float(rng.uniform(0.8, 1.2)), count=1200.0) for name, value in parts.items()}
    )


def make_flow(folder: Path, num_steps: int = 40, *, end: str = "finish", trace: bool = True) -> Path:
    """A run of two groups a step; every ninth group is flat, every seventeenth loses a rollout to its deadline."""
    rng = np.random.default_rng(1)
    with RunWriter(folder) as writer:
        writer.config(FLOW_CONFIG)
        ledger, timeline = Ledger(writer.ledger), Timeline(writer.span if trace else None, lambda: 0.0)
        writer.event(Event(event="start", step=0, version=0))
        writer.event(Event(event="eval", step=0, version=0, metrics=eval_of(0)))
        for step in range(1, num_steps + 1):
            used_s, trained = STEP_S * (step + 3), 0
            for index in (2 * step - 2, 2 * step - 1):
                done = []
                for member in range(SIZE):
                    id, engine = f"g{index}/{member}", f"engine-{member % 2}"
                    rollout = sampled(id, step, rng, STEP_S * (step - 1) + 0.2 * member)
                    ledger.admit(id, f"arithmetic/train/{index}", f"g{index}", rollout.started_s)
                    version = rollout.completion.version
                    changes = [(STEP_S * int(v), int(v)) for v in np.unique(version)[1:]]
                    times = (rollout.started_s, rollout.sampled_s)
                    timeline.rollout(engine, id, rollout.completion, times, changes if step % 2 else ())
                    if index % 17 == 16 and member == 0:
                        ledger.sampled(id, rollout.completion, rollout.sampled_s)
                        ledger.close(id, "failed:deadline")
                        continue
                    timeline.span("rewards", "reward", rollout.sampled_s, rollout.finished_s, id=id)
                    ledger.finish(rollout)
                    done.append(rollout)
                finished_s = max(rollout.finished_s for rollout in done)
                timeline.span("queue", "group", finished_s, max(finished_s, used_s), id=f"g{index}")
                fate = "filtered:flat-group" if index % 9 == 8 else "trained"
                for rollout in done:
                    ledger.close(rollout.id, fate, step=step, used_s=max(finished_s, used_s))
                    trained += fate == "trained"
            timeline.span("trainer", "wait: data", used_s, used_s + 0.7)
            timeline.span("trainer", "step", used_s + 0.7, used_s + 1.8, step=step)
            timeline.span("publications", "publication", used_s + 1.8, used_s + 1.9, version=step, number=step)
            own = {
                "time/virtual_s": Metric(used_s + 1.8, "last"),
                "ledger/trained": Metric(float(trained), "sum"),
                "ledger/admitted": Metric(float(ledger.num_admitted), "last"),
            }
            metrics = metrics_of(step, rng) | waits_of(step, rng) | own
            writer.event(Event(event="step", step=step, version=step, metrics=metrics))
            if step % 20 == 0:
                writer.rollouts([sample_of(step, f"g{2 * step - 2}/1", rng)])
        if end:
            metrics = {
                "ledger/balance": Metric({fate: float(n) for fate, n in ledger.balance().items()}, "sum"),
                "ledger/admitted": Metric(float(ledger.num_admitted), "last"),
            }
            writer.event(Event(event=end, step=num_steps, version=num_steps, metrics=metrics))
    return folder
