"""Runs with books: so many rollouts a step, each with a fate, and what the steps say of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tether.journal import Ledger, RunWriter, Sample
from tether.records import Completion, Event, Metric, Prompt, Rollout

SIZE = 2
"""Rollouts of a group."""


def rollout_of(id: str, length: int, version: int = 0) -> Rollout:
    zeros = np.zeros(length, np.float32)
    completion = Completion(
        token_ids=np.ones(length, np.int32),
        logp=zeros,
        entropy=zeros,
        version=np.full(length, version, np.int32),
        finish="stop",
    )
    prompt = Prompt(id=f"sums/{id.partition('/')[0]}", text="1+1=", token_ids=(1, 2), reference="2")
    return Rollout(
        id=id,
        prompt=prompt,
        completion=completion,
        text="2",
        reward=1.0,
        started_s=0.0,
        sampled_s=1.0,
        finished_s=1.5,
        finished_at=version,
    )


def sample_of(id: str, step: int) -> Sample:
    one = np.zeros(1, np.float32)
    return Sample(
        id=id,
        step=step,
        prompt="1+1=",
        completion="2",
        token_texts=("2",),
        token_ids=np.ones(1, np.int32),
        logp_behavior=one,
        logp=one,
        version=np.zeros(1, np.int32),
        staleness=np.zeros(1, np.int32),
        trainable=np.ones(1, bool),
        reward=1.0,
        advantage=0.0,
    )


def make_books(
    folder: Path,
    fates: Sequence[Sequence[str]] = (("trained", "trained"), ("trained", "filtered:flat-group")),
    *,
    late: int = 0,
    end: str = "finish",
    note: str = "",
    tells_admitted: bool = True,
) -> Path:
    """A run of a group a step, with the fates of its members; ``late`` groups are open when it ends.

    A trained completion has 4 tokens, any other 12.
    """
    with RunWriter(folder) as writer:
        writer.config({"recipe": "books", "pipeline": {"group_size": SIZE}})
        writer.event(Event(event="start", step=0, version=0))
        ledger = Ledger(writer.ledger)

        def admit(group: int) -> list[str]:
            ids = [f"g{group}/{member}" for member in range(SIZE)]
            for id in ids:
                ledger.admit(id, f"sums/g{group}", f"g{group}", 0.0)
            return ids

        for group in range(len(fates), len(fates) + late):
            admit(group)
        for number, members in enumerate(fates, start=1):
            for id, fate in zip(admit(number - 1), members, strict=True):
                ledger.finish(rollout_of(id, 4 if fate == "trained" else 12))
                ledger.close(id, fate, step=number, used_s=2.0)
            metrics = {"ledger/trained": Metric(float(list(members).count("trained")), "sum")}
            if tells_admitted:
                metrics["ledger/admitted"] = Metric(float(ledger.num_admitted), "last")
            writer.event(Event(event="step", step=number, version=number, metrics=metrics))
            writer.rollouts([sample_of(f"g{number - 1}/0", number)])
        if end:
            ledger.close_rest()
            metrics = {"ledger/balance": Metric({k: float(v) for k, v in ledger.balance().items()}, "sum")}
            if tells_admitted:
                metrics["ledger/admitted"] = Metric(float(ledger.num_admitted), "last")
            writer.event(Event(event=end, step=len(fates), version=len(fates), metrics=metrics, note=note))
    return folder


def edit(folder: Path, name: str, change) -> None:
    """Change the lines of a file of a run: what a fault would have left behind."""
    path = folder / name
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(change(lines)))
