"""Truncated distributions, and the trainer's log-probabilities over what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tether.core.support import KeptIds, supported_logp
from tether.core.truncation import Limits, kept_of
from tether.records import Truncation

from .tables import Row, assert_close, inputs, label, rows

REPLAY = "top-p replay, logits 3,2,1,0,-1"
NUCLEUS = "nucleus for p=.9"


def over(logits: torch.Tensor, ids: list[int], kept: list[int]) -> torch.Tensor:
    """Each of ``ids`` over the same set."""
    starts = np.arange(len(ids) + 1) * len(kept)
    sets = KeptIds.of(np.array(kept * len(ids)), starts)
    hidden = logits.expand(len(ids), -1)
    logp, _ = supported_logp(
        hidden, (torch.tensor(ids), sets), lambda x: x, temperature=1.0, vocabulary=logits.shape[-1], entropy="none"
    )
    return logp


@pytest.mark.parametrize("row", rows("top-p replay, logits 3,2,1,0,-1"), ids=label)
def test_log_probs_over_the_kept_ids(row: Row) -> None:
    logits, kept = torch.tensor(inputs(REPLAY)["logits"]), row["kept ids"]
    replayed, full = over(logits, kept, kept), logits.log_softmax(-1)[kept]
    assert_close(replayed, row["replayed log-probs"])
    assert_close(full, row["full log-probs"])
    assert_close((replayed - full)[0], row["shift = log(Z_full/Z_kept)"])


def test_the_nucleus_is_the_shortest_prefix_that_reaches_its_mass() -> None:
    (row,) = rows("nucleus for p=.9")
    given = inputs(NUCLEUS)
    logp = torch.tensor([given["logits"]]).log_softmax(-1)
    assert_close(logp.exp()[0], row["probs"])
    kept = kept_of(logp, Limits.of([Truncation(top_p=given["top_p"])], logp.device))
    assert kept.mask[0].nonzero()[:, 0].tolist() == row["kept"]
