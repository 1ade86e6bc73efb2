"""Trained ids are sampled ids: what the model reads and is scored on is what the engine drew, id by id."""

from __future__ import annotations

import numpy as np

from tether.errors import SelfCheckError
from tether.pipeline.packing import MicroBatch, Step


def check_sampled(step: Step) -> None:
    """Raise ``SelfCheckError`` unless every trained id is the sampled one and follows the sampled one before it.

    Text is never encoded again on the way from the engine to the trainer; this looks whether it stayed so.
    """
    for micro_batch in step.micro_batches:
        _check(micro_batch)


def _check(micro_batch: MicroBatch) -> None:
    inputs = micro_batch.inputs
    read = inputs.input_ids.cpu().numpy()
    row, column, ids = (t.cpu().numpy() for t in (inputs.row, inputs.column, inputs.ids))
    start = 0
    for packed in micro_batch.rows:
        prompt, sampled = packed.rollout.prompt.token_ids, packed.rollout.completion.token_ids
        own = slice(start, start := start + len(sampled))
        if not len(sampled):
            continue
        before = np.concatenate([prompt[-1:], sampled[:-1]])
        is_same = (ids[own] == sampled) & (read[row[own], column[own]] == before)
        is_same &= np.array_equal(read[row[own][0], : len(prompt)], prompt)
        if not is_same.all():
            at = int(np.argmin(is_same))
            raise SelfCheckError(
                f"self-check 'sampled ids' failed: token {at} of rollout {packed.rollout.id!r} was sampled as id "
                f"{sampled[at]} after {before[at]} and would be trained as {ids[own][at]} after "
                f"{read[row[own], column[own]][at]}; ids go from the engine to the trainer as they are, and no text is "
                "encoded again: look at what made this step"
            )
