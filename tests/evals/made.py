"""Made-up runs with evaluations, as ``tether train`` leaves them behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tether.evals.at_k import average_at
from tether.journal import RunWriter
from tether.journal.evaluated import Evaluated, evaluated_to_json
from tether.journal.schema import EVALS_FILE, to_line
from tether.records import Event, Metric

Steps = Mapping[int, np.ndarray]
"""Right or wrong ``[n, k]`` at each step."""


def problem(step: int, number: int, correct: Sequence[bool | None], **others: object) -> Evaluated:
    """One problem; an answer is "right", or its own place where it is wrong."""
    k = len(correct)
    kept = {
        "task": "aime",
        "criterion": "math",
        "problem": f"aime/{number}",
        "prompt_id": f"aime/heldout/0/{number}",
        "reference": str(number),
        "seed": 0,
        "temperature": 1.0,
        "top_p": 1.0,
        "max_tokens": 32,
        "versions": (step,) * k,
        "extracted": tuple("right" if flag else None if flag is None else str(i) for i, flag in enumerate(correct)),
        "status": tuple("failed" if flag is None else "correct" if flag else "wrong" for flag in correct),
        "length": (8,) * k,
        "truncated": (False,) * k,
    }
    return Evaluated(**{**kept, "step": step, "version": step, "correct": tuple(correct), **others})


def problems(steps: Steps, **others: object) -> list[Evaluated]:
    """Every problem of every evaluation."""
    return [
        problem(step, number, [bool(x) for x in row], **others)
        for step, correct in steps.items()
        for number, row in enumerate(correct)
    ]


def write_lines(path: Path, lines: Sequence[Evaluated]) -> Path:
    path.write_bytes(b"".join(to_line(evaluated_to_json(line)) for line in lines))
    return path


def made_run(
    folder: Path, steps: Steps, *, seed: int = 0, preset: str = "grpo", end: str = "finish", has_lines: bool = True
) -> Path:
    """A run with these evaluations; without lines it is one from before they were kept."""
    n, k = next(iter(steps.values())).shape
    with RunWriter(folder) as writer:
        writer.config(
            {
                "recipe": "made",
                "run": {"seed": seed},
                "task": {"name": "aime", "reward": "math"},
                "eval": {"prompts": n, "samples": k, "temperature": 1.0},
                "engine": {"max_tokens": 32},
                "algorithm": {"preset": preset, "corrections": []},
                "derived": {"algorithm": preset},
            }
        )
        for step, correct in steps.items():
            ends = average_at(correct)._asdict().items()
            names = {"value": "eval/accuracy", "low": "eval/accuracy_low", "high": "eval/accuracy_high"}
            metrics = {names[end_]: Metric(value, "last") for end_, value in ends}
            writer.event(Event(event="eval", step=step, version=step, metrics=metrics))
            measured = {"reward/mean": Metric(0.25 + step / 100), "staleness/max": Metric(float(step), "max")}
            writer.event(Event(event="step", step=step + 1, version=step + 1, metrics=measured))
        if end:
            note = "no space left" if end == "fail" else ""
            writer.event(Event(event=end, step=step, version=step, metrics={}, note=note))
    if has_lines:
        write_lines(folder / EVALS_FILE, problems(steps, seed=seed))
    return folder


def answers(chance: float, seed: int = 0, n: int = 40, k: int = 4, steps: Sequence[int] = (0, 10, 20)) -> Steps:
    """Evaluations of a run that is right so often; a problem has the same difficulty whoever is asked."""
    numbers, difficulty = np.random.default_rng(seed), np.linspace(-0.2, 0.2, n)[:, None]
    return {step: numbers.random((n, k)) < chance + difficulty for step in steps}
