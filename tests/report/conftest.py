from pathlib import Path

import numpy as np
import pytest

from tether.journal import Ledger, RunWriter, Sample
from tether.records import Completion, Event, Metric, Metrics, Prompt, Rollout
from tether.report import write_report

LAG = 8
NASTY = "<script>alert('owned')</script>"
CONFIG = {
    "recipe": "quickstart",
    "run": {"steps": 160, "seed": 0, "device": "cpu", "samples": 4},
    "model": {"path": "tiny-moe", "dtype": "float32"},
    "task": {"name": "arithmetic", "modulus": 7},
    "engine": {"kind": "torch", "dtype": "bfloat16", "temperature": 1.0, "max_tokens": 24},
    "pipeline": {
        "regime": "batch-async",
        "lag": LAG,
        "prompts_per_step": 8,
        "group_size": 8,
        "max_staleness": 15,
        "updates_per_batch": 1,
        "in_flight": "keep",
        "window": 0,
    },
    "algorithm": {
        "preset": "sat-gspo",
        "level": "sequence",
        "measure": "step",
        "rule": {"name": "sat", "quantile": 0.9},
        "proximal": {"name": "rollout"},
        "corrections": [{"name": "tis"}],
        "step_size": {"name": "vcpo"},
        "replay": [],
        "kl": None,
    },
    "trainer": {"lr": 3e-4},
}


def metrics_of(step: int, rng: np.random.Generator) -> Metrics:
    age = (step % LAG) + (LAG if step >= LAG else 0)
    abs_mean = 0.01 * (1 + age / 4) * float(rng.lognormal(0, 0.15))
    q = 2.2 * abs_mean
    radius = (0.2 * q * q) ** (1 / 3)
    progress = 1 - float(np.exp(-step / 60))
    means = {
        "reward/part/math": 0.3 + 0.4 * progress,
        "reward/part/overlong": -0.1,
        "reward/groups_all_right": 0.3 * progress,
        "reward/groups_all_wrong": 0.5 - 0.4 * progress,
        "reward/groups_mixed": 0.5 + 0.1 * progress,
        "reward/flat_groups_fraction": 0.5 - 0.1 * progress,
        "reward/mean": 0.3 + 0.4 * progress + float(rng.normal(0, 0.05)),
        "mismatch/abs_mean": abs_mean,
        "mismatch/p99": abs_mean * 9,
        "sat/q": q,
        "sat/effective_radius_low": radius,
        "sat/effective_radius_high": radius * 1.05,
        "sat/gate_fraction": 0.09 + float(rng.normal(0, 0.004)),
        "sat/newly_cut_fraction": 0.02 * float(rng.uniform()),
        "clip/fraction": 0.03 + 0.01 * float(rng.uniform()),
        **dict.fromkeys((f"fate/clipped/{sign}/outward" for sign in ("positive", "negative")), 0.012),
        **dict.fromkeys((f"fate/masked/{sign}/pull_back" for sign in ("positive", "negative")), 0.003),
        "correction/tis/mean_weight": 0.97 + 0.01 * float(rng.uniform()),
        "correction/tis/zero_fraction": 0.006,
        "mismatch/policy_abs_mean": 0.75 * abs_mean,
        "mismatch/lost_mass_mean": 0.02,
        "mismatch/lost_mass_max": 0.1,
        "mismatch/engine_abs_mean": 0.25 * abs_mean,
        "mismatch/engine_cached_abs_mean": 0.5 * abs_mean,
        "policy/step_size": 0.85 + 0.02 * float(rng.uniform()),
        "policy/entropy": 0.9 - 0.4 * progress + float(rng.normal(0, 0.02)),
        "policy/grad_norm": 0.4 * float(rng.lognormal(0, 0.3)),
        "throughput/tokens_per_s": 2900 + float(rng.normal(0, 150)),
    }
    seconds = {"time/generate_s": 0.31, "time/train_s": 0.42, "time/measure_s": 0.11, "time/publish_s": 0.004}
    return (
        {name: Metric(value, count=1200.0) for name, value in means.items()}
        | {name: Metric(value * float(rng.uniform(0.9, 1.1)), "sum") for name, value in seconds.items()}
        | {
            "staleness/mean": Metric(float(age), count=1200.0),
            "staleness/max": Metric(float(age), "max", 1200.0),
            "staleness/histogram": Metric({str(age): 1200.0}, "sum", 1200.0),
            "reward/status/math": Metric({"wrong": 30.0, "correct": 24.0, "timeout": 6.0}, "sum", 60.0),
        }
    )


def eval_of(step: int) -> Metrics:
    accuracy = 0.31 + 0.34 * (1 - float(np.exp(-step / 60)))
    return {
        "eval/accuracy": Metric(accuracy, count=1024.0),
        "eval/accuracy_low": Metric(accuracy - 0.03, count=1024.0),
        "eval/accuracy_high": Metric(accuracy + 0.03, count=1024.0),
        **{f"eval/length_{name}": Metric(size) for name, size in (("mean", 11.5), ("median", 11.0), ("p95", 19.0))},
    }


def sample_of(step: int, id: str, rng: np.random.Generator) -> Sample:
    completion = "0,0,5,6"
    num = len(completion) + 1
    behavior = -rng.exponential(0.4, num).astype(np.float32)
    version = np.full(num, max(0, step - LAG), np.int32)
    return Sample(
        id=id,
        step=step,
        prompt="4+3*5-2+1=",
        completion=completion if step else NASTY,
        token_texts=(*completion, "<eos>"),
        token_ids=np.arange(num, dtype=np.int32),
        logp_behavior=behavior,
        logp=behavior + rng.normal(0, 0.03, num).astype(np.float32),
        version=version,
        staleness=(step - version).astype(np.int32),
        trainable=np.ones(num, bool),
        reward=1.0,
        advantage=0.7,
    )


def rollout_of(id: str, step: int) -> Rollout:
    three = np.zeros(3, np.float32)
    completion = Completion(
        token_ids=np.ones(3, np.int32),
        logp=three,
        entropy=three,
        version=np.full(3, step, np.int32),
        finish="stop",
    )
    prompt = Prompt(id=f"arithmetic/train/{step}", text="4+3=", token_ids=(1, 2), reference="0")
    return Rollout(id=id, prompt=prompt, completion=completion, text="0", reward=1.0, started_s=0.0, finished_s=1.0)


def make_run(folder: Path, num_steps: int = 160, end: str = "finish", note: str = "") -> Path:
    """A run as the pipeline would leave it behind."""
    rng = np.random.default_rng(0)
    with RunWriter(folder) as writer:
        writer.config(CONFIG)
        ledger = Ledger(writer.ledger)
        writer.event(Event(event="start", step=0, version=0))
        writer.event(Event(event="eval", step=0, version=0, metrics=eval_of(0)))
        for step in range(num_steps):
            for place in range(8):
                id = f"g{step}/{place}"
                ledger.admit(id, f"arithmetic/train/{step}", f"g{step}")
                ledger.finish(rollout_of(id, step))
                ledger.close(id, "filtered:flat-group" if step % 9 == 4 else "trained", step=step, used_s=2.0)
            writer.event(Event(event="step", step=step, version=step, metrics=metrics_of(step, rng)))
            if step % 8 == 7:
                distances = {"distance": 0.002, "allowed": 0.006, "abs_d_previous": 0.03}
                distances["rerouted_share/engine-0"] = 0.006
                measured = {f"probe/{name}": Metric(value) for name, value in distances.items()}
                writer.event(Event(event="check", step=step, version=step, metrics=measured))
            if step % 20 == 0:
                writer.rollouts([sample_of(step, f"g{step}/0", rng)])
            if step % 32 == 31:
                writer.event(Event(event="eval", step=step + 1, version=step + 1, metrics=eval_of(step + 1)))
        ledger.admit("late", "arithmetic/train/0", "late")
        ledger.close_rest()
        if end:
            names = ("before", "after", "gain", "gain_low", "gain_high")
            values = (0.312, 0.628, 0.316, 0.281, 0.351)
            paired = {f"eval/accuracy_{name}": Metric(v) for name, v in zip(names, values, strict=True)}
            found = {"best": 0.7, "best_step": 96.0, "last": 0.628, "trailing": 0.61}
            paired |= {f"eval/{name}": Metric(v, "last", 6.0) for name, v in found.items()}
            writer.event(
                Event(
                    event=end,
                    step=num_steps,
                    version=num_steps,
                    metrics=paired if end == "finish" else {},
                    note=note,
                )
            )
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with its report; only to be read."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "finished")
    write_report(folder)
    return folder
