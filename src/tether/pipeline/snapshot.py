"""What a run is besides its weights, as one file: the loops, the ledger's open lines, the controller, the clock.

It is read as data alone: only the records named here can come out of it, and reading runs no code of the file's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tether.errors import ResumeError
from tether.evals.runner import Evaluation
from tether.journal.ledger import LedgerLine
from tether.pipeline.alarms import Alarms
from tether.pipeline.buffer import BufferState
from tether.pipeline.loops import LoopsState
from tether.pipeline.pool import PoolState
from tether.pipeline.rolling import Member, Streaks, Underway
from tether.pipeline.rollouts import Asked
from tether.ports import GenerationRequest
from tether.records import Completion, Group, Prompt, Rollout

RUN_FILE = "run.pt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A run between two steps."""

    now_s: float
    """On the run's clock, to the last bit."""
    loops: LoopsState
    open_lines: tuple[LedgerLine, ...]
    """What the ledger knows of the rollouts that have no fate yet."""
    evaluations: tuple[Evaluation, ...]
    alarms: Alarms
    skipped: int
    """Steps without a trainable token, up to now in a row."""


_RECORDS = (
    Snapshot,
    LoopsState,
    BufferState,
    PoolState,
    Streaks,
    Underway,
    Member,
    Asked,
    GenerationRequest,
    Prompt,
    Completion,
    Rollout,
    Group,
    LedgerLine,
    Evaluation,
    Alarms,
)
_NUMPY: tuple[Any, ...] = (
    np.ndarray,
    np.dtype,
    np.empty(0).__reduce__()[0],  # what numpy rebuilds arrays with
    *(type(np.dtype(name)) for name in ("int8", "int16", "int32", "int64", "float32", "float64", "bool", "uint64")),
)


def write_snapshot(snapshot: Snapshot, folder: Path) -> None:
    """Write ``run.pt``."""
    torch.save(snapshot, folder / RUN_FILE)


def read_snapshot(folder: Path) -> Snapshot:
    """Read ``run.pt``. Raises ``ResumeError`` where it holds what this version cannot read."""
    try:
        with torch.serialization.safe_globals([*_RECORDS, *_NUMPY]):
            snapshot = torch.load(folder / RUN_FILE, weights_only=True)
    except Exception as error:  # whatever an older or newer version wrote
        raise ResumeError(
            f"{folder / RUN_FILE} cannot be read by this version of tether ({type(error).__name__}); resume with the "
            "version that wrote it"
        ) from error
    assert isinstance(snapshot, Snapshot)
    return snapshot
